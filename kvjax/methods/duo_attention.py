"""DuoAttention: heads that keep everything, and heads that keep sinks and recent tokens.

*DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads*, arXiv 2410.10819, sections 2.3 and 2.4.
Stages: score Recency · allocate FullHeads(pattern) · select TopK(sinks, recent) · every step.
Which heads are full is found offline: give the pattern, or `kvjax.allocate.full_heads(alpha, sparsity)` of learned alphas.
Differs: a prompt is read whole, every head attending to all of it; the release can feed it in pieces, and a streaming head then
sees a cut past. Without noise, ties at the threshold are all full.
"""


from kvjax.allocate.full_heads import FullHeads
from kvjax.policy import Policy
from kvjax.schedule import Every
from kvjax.score import Recency
from kvjax.select import TopK
from kvjax.types import Number

#: What a user brings beside the prompt.
REQUIRES = ("training",)


def duo_attention(pattern: Number, sinks: int = 64, recent: int = 256) -> Policy:
    """Keep all in full heads; in the others the first `sinks` and the last `recent` tokens, after the prompt and at every step.

    Args:
        pattern: bool or 0-1 [L, H], true for full heads.   sinks, recent: slots of a streaming head, positions unchanged.

    A decode step sees sinks + recent + 1 keys in a streaming head, its own included.
    """
    if min(sinks, recent) < 0 or sinks + recent < 1:
        raise ValueError(f"sinks and recent are numbers of slots, at least one together; got {sinks} and {recent}")
    allocate = FullHeads.of(pattern, sinks + recent)
    return Policy(score=Recency(), allocate=allocate, select=TopK(sinks=sinks, recent=recent), when=Every(1))
