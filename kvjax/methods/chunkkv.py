"""ChunkKV: runs of consecutive tokens stay or go together.

*ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference*, arXiv 2502.00299.
Stages: score RecentOnTop(SnapKV's) · select Chunks(size) · after the prompt.
Differs: SnapKV's group means are summed over the KV heads, chunks are of 20 tokens, as in kvpress (the paper's experiments have 10:
`size=10`); no reuse of one layer's chunks in the next.

BibTeX:
    @misc{liu2025chunkkv, title={ChunkKV: Semantic-Preserving KV Cache Compression for Efficient Long-Context LLM Inference},
      author={Xiang Liu and others}, year={2025}, eprint={2502.00299}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.chunkkv(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.budget import number_of
from kvjax.methods.snapkv import snapkv
from kvjax.policy import Policy
from kvjax.score import AvgPool, RecentOnTop
from kvjax.select import Chunks
from kvjax.types import Function


def chunkkv(
    budget: int | float = 256, size: int = 20, window: int = 32, pool: Function = AvgPool(5), whole: bool = True
) -> Policy:  # fmt: skip
    """Keep the chunks of `size` tokens the window attends to most; a share keeps that share of the chunks.

    Whole chunks seldom fill a budget exactly: whole=False takes part of the last one. A share is the selector's, too: for another
    one make the policy anew, `.replace(budget=...)` leaves the selector as it is.
    """
    score = RecentOnTop(snapkv(window=window, pool=pool).score, recent=window)
    share = budget if isinstance(number_of(budget), float) else None
    return Policy(score=score, select=Chunks(size=size, share=share, whole=whole), budget=budget)
