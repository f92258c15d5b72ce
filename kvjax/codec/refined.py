"""What a codec lost, coded by a second one."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.wrapped import Wrapped
from kvjax.types import Keys, Layer


@struct.dataclass
class RefinedRows:
    """first, rest: rows of both codecs."""

    first: PyTree
    rest: PyTree


@struct.dataclass
class Refined(Wrapped):
    """x ≈ c(x) + e(x - c(x)).

    Args:
        rest: e, what codes the first one's error.
    """

    rest: Codec

    @property
    def inner(self) -> tuple[Codec, ...]:
        return self.codec, self.rest

    def at(self, layer: Layer) -> "Refined":
        return self.replace(codec=self.codec.at(layer), rest=self.rest.at(layer))

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> RefinedRows:
        return RefinedRows(self.codec.rows(slots, d, dtype), self.rest.rows(slots, d, dtype))

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> RefinedRows:
        first = self.codec.encode(x, pos, params)
        error = x.astype(jnp.float32) - self.codec.decode(first, jnp.float32, params)
        return RefinedRows(first, self.rest.encode(error, pos, params))

    def decode(self, rows: RefinedRows, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        first = self.codec.decode(rows.first, jnp.float32, params)
        return (first + self.rest.decode(rows.rest, jnp.float32, params)).astype(dtype)
