"""KVzip: what reading the prompt out again would look at, whatever is asked later.

*KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction*, arXiv 2505.23416, sections 3.2 and 3.3.
Stages: score Reconstruction(RepeatedContext) · allocate AcrossModel, or Uniform · select TopK(sinks=system) · after the prompt.
The prompt is read a second time: `pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)`, then compress.
Differs: the first `system` tokens stay and count inside the budget, which is kept exactly with at least a slot a head (the release
keeps what lies strictly above a threshold, one pair less, and may leave a head without context); the wording of the request;
nothing stands between it and what is read again (the release puts the chat template's answer header there).
Heads told apart once and for all, from prompts that are there beforehand: `head_pattern`, for `kvjax.methods.duo_attention`.

BibTeX:
    @misc{kim2025kvzip, title={KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction},
      author={Jang-Hyun Kim and others}, year={2025}, eprint={2505.23416}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.kvzip(budget=0.25)
    pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64)
"""

import numpy as np
from jaxtyping import Bool, Float32

from kvjax.allocate import AcrossModel
from kvjax.compress.score_prompt import score_prompt
from kvjax.policy import Policy
from kvjax.prefill.prefilled import Prefilled
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.score import Reconstruction
from kvjax.select import TopK
from kvjax.stage import Allocator


def kvzip(
    budget: int | float = 0.3, allocate: Allocator = AcrossModel(), system: int = 4, chunk: int = 2000,
    first: tuple[int, ...] | None = None, further: tuple[int, ...] | None = None,
) -> Policy:  # fmt: skip
    """Keep the tokens that a pass which repeats the prompt attends to most; `allocate=Uniform()` for the same number a head.

    `system` tokens at the start always stay; chunks and the ids of the requests (for models without a tokenizer) as in
    `kvjax.prefill.RepeatedContext`.
    """
    repeated = RepeatedContext(chunk=chunk, system=system, first=first, further=further)
    return Policy(score=Reconstruction(repeated=repeated), allocate=allocate, select=TopK(sinks=system), budget=budget)


def head_scores(pre: Prefilled, policy: Policy) -> Float32[np.ndarray, "l h"]:
    """s_lh = the largest score that a token of any of the prompts has in head (l, h).

    Args:
        pre: prompts with the second pass of `policy`, a `kvzip`.
    """
    lengths, rows = pre.lengths, score_prompt(pre, policy).rows
    return np.max([np.asarray(row.scores)[:, 0, :, :n].max(-1) for row, n in zip(rows, lengths, strict=True)], axis=0)


def head_pattern(pre: Prefilled, policy: Policy, share: float) -> Bool[np.ndarray, "l h"]:
    """The round(share · L · H) heads of the highest `head_scores`, which keep everything; the others keep sinks and recent tokens.

    Equal scores: the lower layer and head first. The pattern serves any prompt: `kvjax.methods.duo_attention(pattern)`.
    """
    if not 0 <= share <= 1:
        raise ValueError(f"share is the part of the heads that keep everything, 0 to 1; got {share}")
    s = head_scores(pre, policy)
    pattern = np.zeros(s.size, bool)
    pattern[np.argsort(-s.ravel(), kind="stable")[: round(share * s.size)]] = True
    return pattern.reshape(s.shape)
