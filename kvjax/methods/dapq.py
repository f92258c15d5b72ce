"""DapQ: what made-up queries at the positions to come look at.

*Where Matters More Than What: Decoding-aligned KV Cache Compression via Position-aware Pseudo Queries*, arXiv 2603.11564.
Stages: score PseudoAttention(PseudoQueries) · select TopK(recent) · after the prompt.
The prompt is read by them in a second pass: `pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)`, then compress.
Differs: a second pass over frozen keys and values, which is the same as tokens appended to the prompt; the wording of the suffix.

BibTeX:
    @misc{tian2026dapq,
      title={Where Matters More Than What: Decoding-aligned KV Cache Compression via Position-aware Pseudo Queries},
      author={Zhenxu Tian and others}, year={2026}, eprint={2603.11564}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.dapq(budget=0.25)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.prefill.pseudo_queries import PseudoQueries
from kvjax.score.pseudo import PseudoAttention
from kvjax.select import TopK

REQUIRES = ("second pass",)


def dapq(
    budget: int | float = 256, size: int = 32, front: int = 4, suffix: tuple[int, ...] | None = None, recent: int = 0
) -> Policy:  # fmt: skip
    """Keep what `size` pseudo queries attend to most, and the last `recent` tokens where asked."""
    queries = PseudoQueries(size=size, front=front, suffix=suffix)
    return Policy(score=PseudoAttention(queries), select=TopK(recent=recent), budget=budget)
