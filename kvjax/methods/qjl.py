"""QJL: of every key the signs of a few random projections and a norm.

*QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero Overhead*, AAAI 2025, arXiv 2406.03482, sections 3 and 4.
Stages: encode Stored(keys=OutlierChannels(SignSketch, SignSketch), values=Affine, window=Windows(BlockFlush(R), Slide(R))) ·
nothing is evicted; any policy that evicts after the prompt can take its `encode`.
q·k is estimated without bias from the signs; the largest channels of every group of tokens are sketched apart, with their own norm.
The newest n mod R keys are exact and coded as a block; the newest R values are, and the oldest of them is coded at every step.
Differs: all layers have as many projections; the release gives the first fifteen twice as many, and their outlier channels half.
Outlier channels have an S of their own, there the first rows of the other. A block of keys is sketched after the step that fills
it, there before; under grouped queries the release codes no value made while decoding.

BibTeX:
    @inproceedings{zandieh2025qjl,
      title={QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero Overhead},
      author={Zandieh, Amir and Daliri, Majid and Han, Insu},
      booktitle={AAAI Conference on Artificial Intelligence}, year={2025}}

Example:
    >>> kvjax.methods.qjl(outliers=0).encode.keys.bits_a_number(128)
    Fraction(17, 8)
"""

from kvjax.codec import Affine, OutlierChannels, SignSketch
from kvjax.encode import BlockFlush, Slide, Stored, Windows
from kvjax.policy import Policy


def qjl(
    ratio: int = 2, outliers: int = 8, outlier_ratio: int = 2, group: int = 32, value_bits: int = 2, value_group: int = 32,
    buffer: int = 128, seed: int = 0,
) -> Policy:  # fmt: skip
    """Keep every token: keys as signs, values in a few bits.

    Args:
        ratio: projections a key channel.   outlier_ratio: of the sketch of outlier channels.
        outliers: channels of a group that are sketched apart; 0: none.   group: tokens that share them.
        value_bits, value_group: of the values' codes, and channels that share a token's step and minimum.
        buffer: R, values that stay exact, and keys of a block; a multiple of `group`.
        seed: of the projections.
    """
    sketch = SignSketch(ratio=ratio, seed=seed)
    apart = SignSketch(ratio=outlier_ratio, seed=seed + 1)
    keys = OutlierChannels(sketch, outside=apart, count=outliers, size=group) if outliers else sketch
    values = Affine(bits=value_bits, group=value_group)
    return Policy(encode=Stored(keys=keys, values=values, window=Windows(keys=BlockFlush(buffer), values=Slide(buffer))))
