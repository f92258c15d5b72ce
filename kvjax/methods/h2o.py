"""H2O: heavy hitters and recent tokens.

*H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models*, arXiv 2306.14048, section 4.
Stages: score AccumulatedAttention · select TopK(recent_share) · every step.
Differs: sums are averaged over the query heads of a KV head (the release breaks under grouped queries); sums stay in float32.

BibTeX:
    @misc{zhang2023h2o, title={H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language Models},
      author={Zhenyu Zhang and others}, year={2023}, eprint={2306.14048}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.h2o(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AccumulatedAttention
from kvjax.select import TopK


def h2o(budget: int | float = 256, recent_share: float = 0.5) -> Policy:
    """Keep the most attended tokens and the last recent_share · budget, after the prompt and at every step."""
    select = TopK(recent_share=recent_share)
    return Policy(score=AccumulatedAttention(), select=select, when=Every(1), budget=budget)
