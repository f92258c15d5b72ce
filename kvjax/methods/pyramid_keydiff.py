"""KeyDiff's scores under a pyramid of head-adaptive budgets, with sinks and a recent window: published by nobody.

A test of the seams: scorer, layer budgets, head budgets and protection come from four different papers (KeyDiff, PyramidKV, Ada-KV,
StreamingLLM) and meet without a class of their own.

Example:
    policy = kvjax.methods.pyramid_keydiff(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Adaptive, Pyramid
from kvjax.policy import Policy
from kvjax.score import KeyDiff
from kvjax.select import TopK


def pyramid_keydiff(budget: int | float = 256, window: int = 16, beta: int = 4, alpha: float = 0.2) -> Policy:
    """Keep the least similar keys, layer budgets falling with depth and shared out to the heads by the scores."""
    allocate = Adaptive(alpha=alpha, layers=Pyramid(beta=beta, window=window))
    return Policy(score=KeyDiff(), allocate=allocate, select=TopK(sinks=4, recent=window), budget=budget)
