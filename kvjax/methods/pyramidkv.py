"""PyramidKV: SnapKV with budgets that fall with depth.

*PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling*, arXiv 2406.02069, section 4.2.
Stages: as SnapKV · allocate Pyramid(beta, window). Exact totals, where the release's floor division exceeds them by up to 5%.

BibTeX:
    @misc{cai2024pyramidkv, title={PyramidKV: Dynamic KV Cache Compression based on Pyramidal Information Funneling},
      author={Zefan Cai and others}, year={2024}, eprint={2406.02069}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.pyramidkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import Pyramid
from kvjax.methods.snapkv import snapkv
from kvjax.policy import Policy
from kvjax.score import AvgPool
from kvjax.types import Function


def pyramidkv(budget: int | float = 256, window: int = 32, pool: Function = AvgPool(5), beta: int = 20) -> Policy:
    """SnapKV with linear layer budgets of mean `budget`; the last layer's share past the window is about 1/beta of the mean."""
    return snapkv(budget, window, pool).replace(allocate=Pyramid(beta=beta, window=window))
