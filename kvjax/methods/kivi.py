"""KIVI: keys coded along tokens, values along channels, the newest of both exact.

*KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache*, ICML 2024, arXiv 2402.02750, section 3 and algorithm 1.
Stages: encode Stored(keys=Affine over tokens, values=Affine over channels, window=Windows(BlockFlush(R), Slide(R))) · nothing is
evicted; any policy that evicts after the prompt can take its `encode`.
Keys are coded after the rotary embedding. A prompt attends exactly; a step sees what it pushes out exactly, then it is coded.
Differs: differences and quotients are taken in float32, by steps and minima of 16 bits; the release takes them in the model's 16
bits. A prompt's last n mod R keys are exact head by head, as many as each head keeps. Known tokens after the prompt come one at a
time.

BibTeX:
    @misc{liu2024kivi, title={KIVI: A Tuning-Free Asymmetric 2bit Quantization for KV Cache},
      author={Zirui Liu and others}, year={2024}, eprint={2402.02750}, archivePrefix={arXiv}}

Example:
    policy = kvjax.methods.kivi()
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.codec import Affine
from kvjax.encode import BlockFlush, Slide, Stored, Windows
from kvjax.policy import Policy


def kivi(bits: int = 2, key_group: int = 32, value_group: int = 32, residual: int = 128) -> Policy:
    """Keep every token, in a few bits.

    Args:
        bits: of a code; 2, or 4 where query heads share KV heads (docs/results/bits.md: what a needle survives).
        key_group: tokens that share a key channel's step and minimum.
        value_group: channels that share a token's; a divisor of the head dimension.
        residual: R, values that stay exact, and keys of a block; a multiple of `key_group`.
    """
    encode = Stored(
        keys=Affine(bits=bits, group=key_group, reduce="token"),
        values=Affine(bits=bits, group=value_group, reduce="channel"),
        window=Windows(keys=BlockFlush(residual), values=Slide(residual)),
    )
    return Policy(encode=encode)
