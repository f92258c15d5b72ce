"""Uniform codes of a token: one step and one minimum over all its channels, bits one behind the other (TurboQuant's values)."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Float32, Int32, PyTree, UInt8

from kvjax.codec.bit_stream import pack_bits, stream_bytes, unpack_bits
from kvjax.codec.codec import Codec
from kvjax.protocols import Decoder
from kvjax.types import Keys, Leaf

#: Steps are at least this.
FLOOR = 1e-8


@struct.dataclass
class UniformRows:
    """code: [.., d·b / 8] bytes.   scale, low: [..], a step and a minimum a token.   Or their shapes."""

    code: UInt8[Array, "*n w"] | Leaf
    scale: Float16[Array, "*n"] | Leaf
    low: Float16[Array, "*n"] | Leaf


def uniform(x: Float[Array, "*n d"], bits: int) -> tuple[Int32[Array, "*n d"], Float32[Array, "*n"], Float32[Array, "*n"]]:
    """(codes, s, mn): s = max((max - min) / (2^b - 1), 1e-8), code = floor((x - mn) / s + 1/2): halves go up."""
    x, top = x.astype(jnp.float32), (1 << bits) - 1
    low = x.min(-1)
    scale = jnp.maximum((x.max(-1) - low) / top, FLOOR)
    codes = jnp.floor((x - low[..., None]) / scale[..., None] + 0.5)
    return jnp.clip(codes, 0, top).astype(jnp.int32), scale, low


@struct.dataclass
class Uniform(Codec):
    """x ≈ s · code + mn, one s and one mn a token, rounded to 16 bits when stored.

    Args:
        bits: of a code, 1 to 8.

    Takes b + 32 / d bits a number; the head dimension is a multiple of 8.
    Source: TurboQuant, arXiv 2504.19874, as served by vLLM. A constant token is its minimum.
    Raises: ValueError for other bits; for head dimensions that do not fill bytes, when compressing.
    """

    bits: int = struct.field(pytree_node=False, default=4)

    def __post_init__(self):
        if not 1 <= self.bits <= 8:
            raise ValueError(f"uniform codes are of 1 to 8 bits; got {self.bits}")

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        del length, mean_budget
        whole_bytes(model.head_dim)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> UniformRows:
        del dtype
        code = jnp.zeros((slots, stream_bytes(d, self.bits)), jnp.uint8)
        return UniformRows(code, jnp.zeros(slots, jnp.float16), jnp.zeros(slots, jnp.float16))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> UniformRows:
        del pos, params
        codes, scale, low = uniform(x, self.bits)
        return UniformRows(pack_bits(codes, self.bits), scale.astype(jnp.float16), low.astype(jnp.float16))

    def decode(self, rows: UniformRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        codes = unpack_bits(rows.code, channels(rows.code, self.bits), self.bits)
        scale, low = (x.astype(jnp.float32)[..., None] for x in (rows.scale, rows.low))
        return (scale * codes + low).astype(dtype)


def channels(code: UInt8[Array, "*n w"], bits: int) -> int:
    """Codes in whole bytes of them."""
    return code.shape[-1] * 8 // bits


def whole_bytes(d: int) -> None:
    """Raise ValueError for channels whose codes would not fill bytes."""
    if d % 8:
        raise ValueError(f"codes one behind the other need a head dimension that is a multiple of 8; the model's is {d}")
