"""AsymKV: more bits for the keys of early layers, one bit elsewhere.

*AsymKV: Enabling 1-Bit Quantization of KV Cache with Layer-Wise Asymmetric Quantization Configurations*, COLING 2025,
arXiv 2410.13212, section 4.
Stages: encode by_layer(KIVI's storage of 1 bit, {first layers: more bits}) · nothing is evicted.
A key's error passes through the query product and the exponential, a value's does not: b_K(l) = high for l < key_layers, b_V(l) =
high for l < value_layers, low elsewhere; the paper writes AsymKV-key_layers/value_layers.
Differs: codes are computed in float32, as `kivi` says. The two numbers of layers are searched for in the paper; the defaults are
its 16/0 for a model of 32 layers.

BibTeX:
    @inproceedings{tao2025asymkv, title={{AsymKV}: Enabling 1-Bit Quantization of {KV} Cache with Layer-Wise Asymmetric
      Quantization Configurations}, author={Tao, Qian and Yu, Wenyuan and Zhou, Jingren}, booktitle={COLING}, year={2025}}

Example:
    policy = kvjax.methods.asymkv(key_layers=2, group=16, residual=64)
    out = kvjax.generate(lm, ids, policy, max_new_tokens=64)
"""

from kvjax.by_layer import by_layer
from kvjax.codec import Affine
from kvjax.encode import BlockFlush, Slide, Stored, Windows
from kvjax.policy import Policy


def asymkv(
    key_layers: int = 16, value_layers: int = 0, high: int = 2, low: int = 1, group: int = 32, residual: int = 128
) -> Policy:
    """Keep every token; keys of the first layers in `high` bits, the values of fewer of them, all others in `low`.

    Args:
        key_layers, value_layers: layers, counted from the first, whose keys and whose values have `high` bits.
        high, low: bits of a code.
        group: tokens that share a key channel's step and minimum, and channels that share a token's value's.
        residual: R, values that stay exact, and keys of a block; a multiple of `group`.

    Raises:
        ValueError: more layers of values than of keys.
    """
    if not 0 <= value_layers <= key_layers:
        raise ValueError(f"keys need the bits first: value_layers is 0 to key_layers; got {value_layers} and {key_layers}")
    both, keys = tuple(range(value_layers)), tuple(range(value_layers, key_layers))
    named = {both: _stored(high, high, group, residual), keys: _stored(high, low, group, residual)}
    encode = by_layer(_stored(low, low, group, residual), {layers: store for layers, store in named.items() if layers})
    return Policy(encode=encode)


def _stored(keys: int, values: int, group: int, residual: int) -> Stored:
    """KIVI's storage with other bits for keys than for values."""
    return Stored(
        keys=Affine(bits=keys, group=group, reduce="token"),
        values=Affine(bits=values, group=group, reduce="channel"),
        window=Windows(keys=BlockFlush(residual), values=Slide(residual)),
    )
