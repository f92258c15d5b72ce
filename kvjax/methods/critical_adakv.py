"""CriticalAdaKV: CriticalKV's two stages inside head budgets that follow the scores.

*CriticalKV: Optimizing KV Cache Eviction from an Output Perturbation Perspective*, arXiv 2502.03805, with Ada-KV's budgets.
Stages: as CriticalKV, with TwoStages(safe=alpha) · allocate Adaptive(alpha) on the scores of the first stage. What a head is
sure of goes by attention, as kvpress has it. Heads are really of different lengths.

BibTeX:
    @misc{feng2025criticaladakv, title={CriticalKV: Optimizing KV Cache Eviction from an Output Perturbation Perspective},
      author={Yuan Feng and others}, year={2025}, eprint={2502.03805}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.critical_adakv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Adaptive
from kvjax.methods.criticalkv import criticalkv
from kvjax.policy import Policy
from kvjax.score import AvgPool
from kvjax.types import Function


def critical_adakv(
    budget: int | float = 256, window: int = 32,
    pool: Function = AvgPool(5), first: float = 0.5, eps: float = 1e-4, alpha: float = 0.2
) -> Policy:  # fmt: skip
    """CriticalKV with a layer's slots shared out to its heads by attention; every head is sure of alpha · budget."""
    policy = criticalkv(budget, window, pool, first, eps)
    return policy.replace(allocate=Adaptive(alpha=alpha), select=policy.select.replace(safe=alpha))
