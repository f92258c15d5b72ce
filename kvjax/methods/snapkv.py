"""SnapKV: what the last queries of the prompt attend to.

*SnapKV: LLM Knows What You are Looking for Before Generation*, arXiv 2404.14469, section 4.
Stages: score WindowAttention(window, pool) · select TopK(recent=window) · after the prompt.
Differs: one decision per KV head, by the mean of its query heads' scores; the release expands keys to query heads first. Each query
head's scores are pooled (PooledByQueryHead) where that is not the same as pooling their mean, as it is for averages.

BibTeX:
    @misc{li2024snapkv, title={SnapKV: LLM Knows What You are Looking for Before Generation},
      author={Yuhong Li and others}, year={2024}, eprint={2404.14469}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.snapkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import AvgPool, NoPool, PooledByQueryHead, WindowAttention
from kvjax.select import TopK
from kvjax.types import Function


def snapkv(budget: int | float = 256, window: int = 32, pool: Function = AvgPool(5)) -> Policy:
    """Keep the window and the budget - window tokens it attends to most, smoothed over neighbours."""
    score = WindowAttention if isinstance(pool, AvgPool | NoPool) else PooledByQueryHead
    return Policy(score=score(window=window, pool=pool), select=TopK(recent=window), budget=budget)
