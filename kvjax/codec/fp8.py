"""Numbers of eight bits: a sign, four bits of exponent and three of fraction."""

from typing import Any

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.types import Keys

#: The greatest finite number of the kind.
TOP = 448.0


@struct.dataclass
class Fp8Rows:
    """byte: [.., d] the bits of each number.   scale: [..] of a token, None where there is none.   Or their shapes."""

    byte: Any
    scale: Any = None


@struct.dataclass
class Fp8(Codec):
    """x ≈ s · fp8(x / s) in e4m3, with s = 1, or one s = max|x| / 448 for each token.

    Args:
        scaled: whether a token has its own s, in 16 bits.

    Takes 8 bits a number, and 16 / d more with a scale. A token of zeros has s = 0 and stays zero.
    """

    scaled: bool = struct.field(pytree_node=False, default=False)

    def rows(self, slots: int, d: int, dtype: Any) -> Fp8Rows:
        del dtype
        return Fp8Rows(jnp.zeros((slots, d), jnp.uint8), jnp.zeros(slots, jnp.float16) if self.scaled else None)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> Fp8Rows:
        del pos, params
        x, scale = x.astype(jnp.float32), None
        if self.scaled:
            scale = (jnp.abs(x).max(-1) / TOP).astype(jnp.float16)
            x = x / jnp.where(scale > 0, scale, 1).astype(jnp.float32)[..., None]
        nearest = jnp.clip(x, -TOP, TOP).astype(jnp.float8_e4m3fn)
        return Fp8Rows(lax.bitcast_convert_type(nearest, jnp.uint8), scale)

    def decode(self, rows: Fp8Rows, dtype: Any, params: PyTree = ()) -> Keys:
        del params
        x = lax.bitcast_convert_type(rows.byte, jnp.float8_e4m3fn).astype(jnp.float32)
        return (x if rows.scale is None else x * rows.scale.astype(jnp.float32)[..., None]).astype(dtype)
