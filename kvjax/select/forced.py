"""Slots that a second ranking forces in, as many as a budget has room for (DefensiveKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.ranges import Whole
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def most_forced(length: Int32[Array, "*x"], budget: Int32[Array, "*x"], window: Number) -> Int32[Array, "*x"]:
    """int((n - W) b / n) - W, at least 0: the budget's share of the tokens before the window, less the window."""
    cut = -(-budget * window // jnp.maximum(length, 1))
    return jnp.maximum(budget - cut - window, 0).astype(jnp.int32)


def raised(ranking: Ranking, budget: Int32[Array, " b"], window: Number) -> Ranking:
    """The `most_forced` slots of least rank in a second ranking above every score: equal there, and below what is protected."""
    length = ranking.valid.sum(-1, dtype=jnp.int32)
    most = most_forced(length, jnp.broadcast_to(budget[:, None], length.shape), window)
    return ranking.replace(scores=jnp.where(ranking.second < most[..., None], jnp.inf, ranking.scores))


@struct.dataclass
class ForcedTopK(Selector):
    """int((n - window) b / n) - window slots of least rank in the scorer's second ranking first, then the highest scores.

    n are the tokens of the prompt, b is the mean budget of all heads.

    Args:
        window: slots that are protected beside them.   protects: the selector whose protected tokens lead.
    """

    reads_second: ClassVar[type | None] = Array
    window: Whole = struct.field(pytree_node=False, default=32)
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        mean = budget.sum((0, 2)) // (budget.shape[0] * budget.shape[2])
        return self.protects(raised(ranking, mean, self.window), budget)
