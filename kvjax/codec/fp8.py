"""Numbers of eight bits: a sign, a few bits of exponent and a few of fraction."""

import jax.numpy as jnp
from flax import struct
from jax import lax
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Float16, Float32, Int32, PyTree, UInt8

from kvjax.codec.codec import Codec
from kvjax.types import Keys, Leaf

#: By name: the dtype, and its greatest finite number.
KINDS = {"e4m3": (jnp.float8_e4m3fn, 448.0), "e5m2": (jnp.float8_e5m2, 57344.0)}


@struct.dataclass
class Fp8Rows:
    """byte: [.., d] the bits of each number.   scale: [..] of a token, None where there is none.   Or their shapes."""

    byte: UInt8[Array, "*n d"] | Leaf
    scale: Float16[Array, "*n"] | Leaf = None


def to_fp8(x: Float[Array, "*a"], kind: str) -> UInt8[Array, "*a"]:
    """The nearest number of the kind, halves to the even one; beyond its greatest, that one. NaN stays NaN."""
    dtype, top = KINDS[kind]
    return lax.bitcast_convert_type(jnp.clip(x.astype(jnp.float32), -top, top).astype(dtype), jnp.uint8)


def from_fp8(byte: UInt8[Array, "*a"], kind: str) -> Float32[Array, "*a"]:
    """The numbers of bits."""
    return lax.bitcast_convert_type(byte, KINDS[kind][0]).astype(jnp.float32)


@struct.dataclass
class Fp8(Codec):
    """x ≈ s · fp8(x / s), with s = 1, or one s = max|x| / greatest for each token.

    Args:
        kind: "e4m3", three bits of fraction up to 448; or "e5m2", two bits of fraction up to 57344.
        scaled: whether a token has its own s, in 16 bits.

    Takes 8 bits a number, and 16 / d more with a scale. A token of zeros has s = 0 and stays zero.
    Source: OCP 8-bit floating point, 2023; the kinds are those without and with infinities.
    Raises: ValueError for another kind.
    """

    kind: str = struct.field(pytree_node=False, default="e4m3")
    scaled: bool = struct.field(pytree_node=False, default=False)

    def __post_init__(self):
        if self.kind not in KINDS:
            raise ValueError(f"numbers of eight bits are one of {tuple(KINDS)}; got {self.kind!r}")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> Fp8Rows:
        del dtype
        return Fp8Rows(jnp.zeros((slots, d), jnp.uint8), jnp.zeros(slots, jnp.float16) if self.scaled else None)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> Fp8Rows:
        del pos, params
        x = x.astype(jnp.float32)
        if not self.scaled:
            return Fp8Rows(to_fp8(x, self.kind))
        scale = (jnp.abs(x).max(-1) / KINDS[self.kind][1]).astype(jnp.float16)
        by = jnp.where(scale > 0, scale, jnp.ones((), scale.dtype)).astype(jnp.float32)
        return Fp8Rows(to_fp8(x / by[..., None], self.kind), scale)

    def decode(self, rows: Fp8Rows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        x = from_fp8(rows.byte, self.kind)
        return (x * rows.scale.astype(jnp.float32)[..., None] if self.scaled else x).astype(dtype)
