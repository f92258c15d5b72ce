"""Numbers rotated before they are coded."""

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float32, Int32, PyTree

from kvjax.codec.layer_regions import LayerRegions
from kvjax.codec.rotation import Hadamard, Rotation
from kvjax.codec.wrapped import Wrapped
from kvjax.protocols import Decoder
from kvjax.types import Keys, Queries


@struct.dataclass
class Rotated(Wrapped):
    """x ≈ Πᵀ c(Π x): scores take rotated queries, the values' sum is turned back once, so that no slot is.

    Args:
        rotation: Π, the same in every layer and head.
    """

    rotation: Rotation = Hadamard()

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.rotation.check(model)
        super().check(model, length, mean_budget)

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> PyTree:
        return self.codec.rows(slots, d, dtype)

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> PyTree:
        return self.codec.encode(self.rotation.rotate(x), pos, params)

    def decode(self, rows: PyTree, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        return self.rotation.unrotate(self.codec.decode(rows, jnp.float32, params)).astype(dtype)

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()) -> Float32[Array, "b h g t n"]:
        return self.codec.scores(self.rotation.rotate(q), at, params)

    def weighted_sum(
        self, at: LayerRegions, weights: Float32[Array, "b h g t n"], d: int, params: PyTree = ()
    ) -> Float32[Array, "b h g t d"]:
        return self.rotation.unrotate(self.codec.weighted_sum(at, weights, d, params))
