"""TriAttention: keys ranked by the attention that queries gathered round their mean will pay them.

*TriAttention: Efficient Long Reasoning with Trigonometric KV Compression*, arXiv 2604.04921.
Stages: score PromptFirst(DistanceSeries, or OwnDistanceSeries) · every `interval` steps. No live queries are read.
Statistics come from `kvjax.calibrate.query_pairs`; without them those of the queries seen so far serve.
Give it a budget above the prompt's length: the prompt comes first, decoded tokens have what it leaves.
Differs: a prompt that does not fit the budget by itself is cut when it has been read (the release holds it, then keeps its first
tokens); neither keeps decoded tokens at an eviction then, but for `recent` here. Evictions are counted from the prompt's end.
Each KV head of each layer keeps its own tokens, by scores as they are, or all heads of a layer the same (`shared`). The release's
runs standardise scores (`z`), give each KV head one set for all layers, by the mean over layers of the group's maximum, and evict
at 128 slots above the budget (`WhenFull(128)`).

BibTeX:
    @misc{mao2026triattention, title={TriAttention: Efficient Long Reasoning with Trigonometric KV Compression},
      author={Weian Mao and others}, year={2026}, eprint={2604.04921}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.triattention(budget=len(ids) + 64)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from jaxtyping import PyTree

from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import AllMax, DistanceSeries, GroupMax, OwnDistanceSeries, PromptFirst
from kvjax.select import TopK


def triattention(
    budget: int | float = 2048, interval: int = 128, recent: int = 0, shared: bool = False, z: bool = False, mean: PyTree = None,
    norms: PyTree = None, origin: str = "",
) -> Policy:  # fmt: skip
    """Keep the prompt and the tokens of highest expected attention at distances 1, 2, 4, ..., 65536.

    Args:
        recent: last tokens that stay.   shared: whether a layer's heads keep the same tokens, by the highest score of any.
        z: whether each query head's scores of decoded tokens are standardised.
        mean, norms: calibrated; `origin` says from what.
    """
    rule = {"heads": AllMax() if shared else GroupMax(), "z": z, "pinned": True}
    score = OwnDistanceSeries(**rule) if mean is None else DistanceSeries(**rule, mean=mean, norms=norms, origin=origin)
    return Policy(score=PromptFirst(score), select=TopK(recent=recent), when=Every(interval), budget=budget)
