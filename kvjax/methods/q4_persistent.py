"""Q4: every key and value in four bits, as agents keep their caches on disk.

*Agent Memory Below the Prompt: Persistent Q4 KV Cache for Multi-Agent LLM Inference on Edge Devices*, arXiv 2603.04428.
Stages: encode Stored(keys and values = Affine of 4 bits over channels) · nothing is evicted.
Each token by itself, the newest included: groups of channels, a step and a minimum of 16 bits each, 4 + 32 / group bits a number.
Keys after the rotary embedding. Nothing that is held is exact, so that a cache grows token by token and can be cut after any.
Differs: this is the codec; what is written to disk is the cache it makes. A prompt attends exactly and is coded then; the release
reads it into the coded cache, so that its queries see keys of four bits. Codes run from a group's minimum to its maximum; those
of the release, of MLX, begin at the end of larger magnitude, and their step is fitted anew so that zero is one of them.

BibTeX:
    @article{agentmemory2026, title={Agent Memory Below the Prompt: Persistent {Q4} {KV} Cache for Multi-Agent {LLM} Inference on
      Edge Devices}, author={Yakov Pyotr Shkolnikov}, journal={arXiv:2603.04428}, year={2026}}

Example:
    policy = kvjax.methods.q4_persistent(group=16)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.codec import Affine
from kvjax.encode import Stored
from kvjax.policy import Policy


def q4_persistent(group: int = 64) -> Policy:
    """Keep every token, in four bits.

    Args:
        group: channels that share a step and a minimum; a divisor of the head dimension, 32 where 64 is none.
    """
    codec = Affine(bits=4, group=group, reduce="channel")
    return Policy(encode=Stored(keys=codec, values=codec))
