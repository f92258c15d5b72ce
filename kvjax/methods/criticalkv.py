"""CriticalKV: half of the budget by attention, half by attention times the size of the projected value.

*CriticalKV: Optimizing KV Cache Eviction from an Output Perturbation Perspective*, arXiv 2502.03805.
Stages: score ValueWeighted(SnapKV's) · select TwoStages(first, recent=window) · after the prompt.
Needs the layer's output projection while the prompt is read; one number a slot is stored.
Differs: norms are averaged over the query heads of a KV head.

BibTeX:
    @misc{feng2025criticalkv, title={CriticalKV: Optimizing KV Cache Eviction from an Output Perturbation Perspective},
      author={Yuan Feng and others}, year={2025}, eprint={2502.03805}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.criticalkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.methods.snapkv import snapkv
from kvjax.policy import Policy
from kvjax.score import AvgPool, ValueWeighted
from kvjax.select import TopK, TwoStages
from kvjax.types import Function


def criticalkv(
    budget: int | float = 256, window: int = 32, pool: Function = AvgPool(5), first: float = 0.5, eps: float = 1e-4
) -> Policy:  # fmt: skip
    """Keep the window; SnapKV's scores fill `first` of the budget, (score + eps) · mean ‖v W_o‖₁ the rest."""
    score = ValueWeighted(snapkv(window=window, pool=pool).score, eps=eps)
    return Policy(score=score, select=TwoStages(first=first, protects=TopK(recent=window)), budget=budget)
