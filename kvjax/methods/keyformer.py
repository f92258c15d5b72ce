"""Keyformer: heavy hitters of attention that is tempered and shaken by noise.

*Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference*, arXiv 2403.09054, section 3.
Stages: score TemperedAttention(seed, slope, end) · select TopK(recent_share) · every step.
Differs: probabilities are averaged over the query heads of a KV head; noise belongs to a layer, head, query and key, so that a row
of a batch draws what it draws alone (the release sums scores over the batch); nothing is lost between keys and recent tokens. The
temperature is at its end after 100 tokens; in the release's runs it is at the last token, `slope=1 / max_new_tokens`.
Without noise and slope it is H2O.

BibTeX:
    @misc{adnan2024keyformer, title={Keyformer: KV Cache Reduction through Key Tokens Selection for Efficient Generative Inference},
      author={Muhammad Adnan and others}, year={2024}, eprint={2403.09054}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.keyformer(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.evidence import Tempered
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import TemperedAttention
from kvjax.select import TopK


def keyformer(
    budget: int | float = 0.6, recent_share: float = 0.3, seed: int = 0, noise: bool = True, slope: float = 0.01, end: float = 2.0
) -> Policy:
    """Keep the last recent_share · budget tokens and the highest summed scores; temperature min(1 + slope · step, end)."""
    rows = Tempered(seed=seed if noise else None, slope=slope, end=end)
    return Policy(score=TemperedAttention(rows), select=TopK(recent_share=recent_share), when=Every(1), budget=budget)
