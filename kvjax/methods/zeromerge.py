"""ZeroMerge: evicted tokens averaged into dense slots that attract attention as all they hold.

*ZeroMerge: Parameter-Free KV Cache Compression for Memory-Efficient Long-Context LLMs*, arXiv 2503.10714.
Stages: score FadingAttention(shrink) · select DenseAndTop(dense, tail_share) · merge IntoDense · every step.
Differs: a dense slot of one token carries a bias of a millionth; several tokens evicted at once are merged together.

BibTeX:
    @misc{liu2025zeromerge, title={ZeroMerge: Parameter-Free KV Cache Compression for Memory-Efficient Long-Context LLMs},
      author={Xin Liu and others}, year={2025}, eprint={2503.10714}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.zeromerge(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.merge import IntoDense, LargestDot
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import FadingAttention
from kvjax.select import DenseAndTop
from kvjax.types import Function


def zeromerge(
    budget: int | float = 0.2, dense: int = 1, tail_share: float = 0.1, shrink: float = 0.98, nearest: Function = LargestDot()
) -> Policy:  # fmt: skip
    """Keep the last tail_share · budget tokens and the most attended; all others live on in `dense` averages, bias ln count.

    Args:
        dense: slots of averages.   shrink: what a row weighs less with every row after it.
        nearest: where an evicted token goes, LargestDot() or SmallestDistance().
    """
    return Policy(
        score=FadingAttention(shrink=shrink),
        select=DenseAndTop(dense=dense, tail_share=tail_share),
        merge=IntoDense(dense=dense, tail_share=tail_share, nearest=nearest),
        when=Every(1),
        budget=budget,
    )
