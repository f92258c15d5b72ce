"""Compactor: keys that span the space of the others, and keys that their neighbours attend to.

*Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores*, arXiv 2507.08143.
Stages: score Compactor(NonCausalAttention) · select TopK(sinks, recent) · after the prompt.
Records the keys before the rotary embedding, and one number a query head and token.
Differs: a short last chunk is not filled up. The ends take part in all scores, and all heads share a sketch, as in the authors'
engine; kvpress, whose defaults these are, cuts the first 8 and the last 4 tokens off before and draws a sketch a head. The engine
has neither the norm of values nor pooling, chunks of 128, leverage and its z-scores within 512 tokens, a weight of 0.5 for it, ends
of 16 and 64, and heads that share out their layer's slots by score (`.replace(allocate=Adaptive(alpha=0.0))`).

BibTeX:
    @misc{chari2025compactor, title={Compactor: Calibrated Query-Agnostic KV Cache Compression with Approximate Leverage Scores},
      author={Vivek Chari and others}, year={2025}, eprint={2507.08143}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.compactor(budget=0.25)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.policy import Policy
from kvjax.score import Compactor, NonCausalAttention
from kvjax.select import TopK


def compactor(
    budget: int | float = 0.5, chunk: int = 256, width: int | None = 48, sinks: int = 8, recent: int = 4, seed: int = 0
) -> Policy:  # fmt: skip
    """Keep both ends and the tokens of highest removed share · z(leverage) + z(attention); `width` and `seed` of the sketch.

    The removed share is the scorer's: for another budget make the policy anew, `.replace(budget=...)` leaves the scorer as it is.
    """
    score = Compactor(attention=NonCausalAttention(chunk=chunk), budget=budget, width=width, seed=seed)
    return Policy(score=score, select=TopK(sinks=sinks, recent=recent), budget=budget)
