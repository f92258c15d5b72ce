"""CUR: tokens that hold much of their neighbourhood's key and value norms.

*CurDKV: Value-Guided KV Compression for LLMs via Approximated CUR Decomposition*, arXiv 2509.15038.
Stages: score WindowLeverage(window) · select TopK(sinks) · after the prompt. Needs no queries.
Differs: squared norms in short windows, as kvpress has it, in place of the paper's leverage scores of a random projection.

BibTeX:
    @misc{sengupta2025cur, title={CurDKV: Value-Guided KV Compression for LLMs via Approximated CUR Decomposition},
      author={Ayan Sengupta and others}, year={2025}, eprint={2509.15038}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.cur(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import WindowLeverage
from kvjax.score.leverage import Product
from kvjax.select import TopK
from kvjax.types import Function


def cur(budget: int | float = 256, sinks: int = 4, window: int | None = 16, combine: Function = Product()) -> Policy:
    """Keep the sinks and the tokens of largest key norm times value norm, relative to `window` neighbours."""
    return Policy(score=WindowLeverage(window=window, sinks=sinks, combine=combine), select=TopK(sinks=sinks), budget=budget)
