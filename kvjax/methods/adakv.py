"""Ada-KV: SnapKV with head budgets that follow the scores.

*Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference*, arXiv 2407.11550, section 4.
Stages: as SnapKV · allocate Adaptive(alpha). Heads are really of different lengths in the pool.
Heads are averaged before scores are pooled, as in the release, whatever the pool.
Differs: average pooling by default (the release max-pools 7: pass `MaxPool(7)`); totals are exact, and the slots
that a head is sure of hold its window first (in the release they come beside the window, and totals are not exact: `rounded=True`).

BibTeX:
    @misc{feng2024adakv, title={Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient LLM Inference},
      author={Yuan Feng and others}, year={2024}, eprint={2407.11550}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.adakv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Adaptive, AdaptiveRounded
from kvjax.methods.snapkv import snapkv
from kvjax.policy import Policy
from kvjax.score import AvgPool, WindowAttention
from kvjax.types import Function


def adakv(
    budget: int | float = 256, window: int = 32, pool: Function = AvgPool(5), alpha: float = 0.2, rounded: bool = False
) -> Policy:  # fmt: skip
    """SnapKV's window, a layer's slots shared out to its heads by the scores; alpha · budget a head for sure, with its window."""
    allocate = AdaptiveRounded(alpha=alpha) if rounded else Adaptive(alpha=alpha)
    return snapkv(budget, window).replace(score=WindowAttention(window=window, pool=pool), allocate=allocate)
