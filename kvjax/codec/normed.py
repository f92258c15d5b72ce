"""Lengths stored apart from coded directions."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float16, Float32, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.wrapped import Wrapped
from kvjax.types import Keys, Leaf


@struct.dataclass
class NormedRows:
    """norm: [..] of each token.   unit: rows of its direction.   Or their shapes."""

    norm: Float16[Array, "*n"] | Leaf
    unit: PyTree


def unit_of(x: Keys) -> tuple[Float32[Array, "b h n d"], Float32[Array, "b h n"]]:
    """(x / ||x||, ||x||); 0 where x is."""
    x = x.astype(jnp.float32)
    norm = jnp.sqrt((x**2).sum(-1))
    return x / jnp.where(norm > 0, norm, 1.0)[..., None], norm


@struct.dataclass
class Normed(Wrapped):
    """x ≈ ||x|| c(x / ||x||), the norm in 16 bits, for a codec of single slots.

    Args:
        corrected: whether the decoded direction is made one unit long again.

    Raises: ValueError for a codec of pages.
    """

    corrected: bool = struct.field(pytree_node=False, default=False)

    def __post_init__(self):
        super().__post_init__()
        if isinstance(self.codec, Codec) and self.codec.page > 1:
            raise ValueError(f"norms are of single slots; {self.codec!r} codes {self.codec.page} at once")

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> NormedRows:
        return NormedRows(jnp.zeros(slots, jnp.float16), self.codec.rows(slots, d, dtype))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> NormedRows:
        unit, norm = unit_of(x)
        return NormedRows(norm.astype(jnp.float16), self.codec.encode(unit, pos, params))

    def decode(self, rows: NormedRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        unit = self.codec.decode(rows.unit, jnp.float32, params)
        unit = unit_of(unit)[0] if self.corrected else unit
        return (rows.norm.astype(jnp.float32)[..., None] * unit).astype(dtype)
