"""Slots that are spared because their attention is unsteady, as many as a share of the budget (RoCo)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import ordered, select_top
from kvjax.score.steady_mean import Steadiness
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


def spared(
    mu: Float32[Array, "*x n"], sd: Float32[Array, "*x n"], free: Bool[Array, "*x n"], feasible: Int32[Array, "*x"]
) -> Float32[Array, "*x n"]:
    """μ for the `feasible` free slots of least σ (ties to the lower position), 1 + σ for the others: above every μ."""
    steady = select_top(jnp.where(free, ordered(-sd), jnp.uint32(0)), feasible)
    return jnp.where(steady, mu, 1.0 + sd)


@struct.dataclass
class SparedFirst(Selector):
    """Slots that the scorer's `Steadiness` spares at a head's budget first, the least steady leading, then the highest scores.

    Args:
        protects: the selector whose protected tokens lead.
    """

    reads_second: ClassVar[type | None] = Steadiness
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        of = ranking.second
        share = whole_share(budget - of.pinned, of.share)
        u = spared(ranking.scores, of.deviation, of.free, of.most - jnp.maximum(share, 0))
        return self.protects(ranking.replace(scores=u), budget)
