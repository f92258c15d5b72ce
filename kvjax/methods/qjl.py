"""QJL: of every key the signs of a few random projections and a norm.

*QJL: 1-Bit Quantized JL Transform for KV Cache Quantization with Zero Overhead*, AAAI 2025, arXiv 2406.03482, sections 3 and 4.
Stages: encode Stored(keys=OutlierChannels(SignSketch, SignSketch), values=Affine, window=BlockFlush) · nothing is evicted; any
policy that evicts after the prompt can take its `encode`.
q·k is estimated without bias from the signs; the largest channels of every group of tokens are sketched apart, with their own norm.
Differs: all layers have as many projections, the release gives the first fifteen twice as many; the projections of outlier
channels are our choice, the paper names no number. The newest tokens wait, fewer than `buffer`, then all are coded at once.

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
from kvjax.encode import BlockFlush, Stored
from kvjax.policy import Policy


def qjl(
    ratio: int = 2, outliers: int = 8, outlier_ratio: int = 1, group: int = 32, value_bits: int = 2, value_group: int = 32,
    buffer: int = 128, seed: int = 0,
) -> Policy:  # fmt: skip
    """Keep every token: keys as signs, values in a few bits.

    Args:
        ratio: projections a key channel.   outlier_ratio: of the sketch of outlier channels.
        outliers: channels of a group that are sketched apart; 0: none.   group: tokens that share them.
        value_bits, value_group: of the values' codes, and channels that share a token's step and minimum.
        buffer: newest tokens that stay exact at most; a multiple of `group`.
        seed: of the projections.
    """
    sketch = SignSketch(ratio=ratio, seed=seed)
    apart = SignSketch(ratio=outlier_ratio, seed=seed + 1)
    keys = OutlierChannels(sketch, outside=apart, count=outliers, size=group) if outliers else sketch
    return Policy(encode=Stored(keys=keys, values=Affine(bits=value_bits, group=value_group), window=BlockFlush(buffer)))
