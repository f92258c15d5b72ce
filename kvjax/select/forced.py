"""Slots that a second ranking forces in, as many as a budget has room for (DefensiveKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


def raised(ranking: Ranking, most: Int32[Array, " b"]) -> Ranking:
    """Slots of a second ranking below `most` above every score; equal among themselves, and below what is protected."""
    forced = ranking.second < jnp.maximum(most, 0)[None, :, None, None]
    return ranking.replace(scores=jnp.where(forced, jnp.inf, ranking.scores))


@struct.dataclass
class ForcedTopK(Selector):
    """The slots of rank below b - window in the scorer's second ranking first, then the highest scores; b the mean of all heads.

    Args:
        window: slots that are protected beside them.   protects: the selector whose protected tokens lead.
    """

    reads_second: ClassVar[type | None] = Array
    window: int = struct.field(pytree_node=False, default=32)
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        mean = budget.sum((0, 2)) // (budget.shape[0] * budget.shape[2])
        return self.protects(raised(ranking, mean - self.window), budget)
