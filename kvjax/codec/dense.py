"""Numbers as they are, in the model's dtype or another: attention kernels read them where they lie."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax.typing import DTypeLike
from jaxtyping import Array, Float, Int32, PyTree

from kvjax.codec.codec import Codec
from kvjax.codec.layer_regions import LayerRegions
from kvjax.kernels.ragged_attention import ragged_scores
from kvjax.types import Keys, Queries


class Dense(Codec):
    """A row is d numbers; whoever writes it casts it to its pool's dtype."""

    dense: ClassVar[bool] = True

    def encode(self, x: Keys, pos: Int32[Array, "b h n"] | None = None, params: PyTree = ()) -> Keys:
        del pos, params
        return x

    def decode(self, rows: Keys, dtype: DTypeLike, params: PyTree = ()) -> Keys:
        del params
        return rows.astype(dtype)

    def scores(self, q: Queries, at: LayerRegions, params: PyTree = ()):
        del params
        where = (at.pos, at.start, at.length, at.positions)
        return ragged_scores(q, at.pool, *where, cap=at.padded_slots, bias=at.bias, window=at.window)


@struct.dataclass
class AsIs(Dense):
    """In the model's own dtype."""

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> Float[Array, "s d"]:
        return jnp.zeros((slots, d), dtype)


@struct.dataclass
class Cast(Dense):
    """In `to` ("bfloat16", "float16", "float32"), whatever the model computes in; rounded once, when stored.

    Args:
        to: the stored dtype.
    """

    to: str = struct.field(pytree_node=False, default="bfloat16")

    def __post_init__(self):
        if self.to not in ("bfloat16", "float16", "float32"):
            raise ValueError(f'Cast stores slots as "bfloat16", "float16" or "float32"; got {self.to!r}')

    def rows(self, slots: int, d: int, dtype: DTypeLike) -> Float[Array, "s d"]:
        del dtype
        return jnp.zeros((slots, d), jnp.dtype(self.to))
