"""No budget: what stays is the selector's to say."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32

from kvjax.allocate.uniform import held
from kvjax.stage import Allocator
from kvjax.view import Ranking


@struct.dataclass
class AllHeld(Allocator):
    """b = n for every head; the selector is asked all the same, and may keep fewer (a threshold)."""

    exact: ClassVar[bool] = False
    by_layer: ClassVar[bool] = True
    given: ClassVar[bool] = True

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        del mean_budget
        return jnp.maximum(held(ranking), 1)
