"""The same budget for every head."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32

from kvjax.stage import Allocator
from kvjax.view import Ranking


def held(ranking: Ranking) -> Int32[Array, "l b h"]:
    """Slots in use: no budget exceeds them."""
    return ranking.valid.sum(-1).astype(jnp.int32)


@struct.dataclass
class Uniform(Allocator):
    """b_lh = mean_budget for every layer and head, whatever it holds."""

    by_layer: ClassVar[bool] = True

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        return jnp.broadcast_to(mean_budget[None, :, None], ranking.valid.shape[:3]).astype(jnp.int32)
