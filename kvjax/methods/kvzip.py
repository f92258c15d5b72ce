"""KVzip: what reading the prompt out again would look at, whatever is asked later.

*KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction*, arXiv 2505.23416, sections 3.2 and 3.3.
Stages: score Reconstruction(RepeatedContext) · allocate AcrossModel, or Uniform · select TopK(sinks=system) · after the prompt.
The prompt is read a second time: `pre = kvjax.second_pass(lm, kvjax.prefill(lm, ids), policy)`, then compress.
Differs: the first `system` tokens stay and count inside the budget, which is kept exactly with at least a slot a head (the release
keeps what lies strictly above a threshold, one pair less, and may leave a head without context); the wording of the request.

BibTeX:
    @misc{kim2025kvzip, title={KVzip: Query-Agnostic KV Cache Compression with Context Reconstruction},
      author={Jang-Hyun Kim and others}, year={2025}, eprint={2505.23416}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.kvzip(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.allocate import AcrossModel
from kvjax.policy import Policy
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
