"""The slots whose score reaches a threshold (MPCache's static rule)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


@struct.dataclass
class AtLeast(Selector):
    """Of what `inner` keeps, the slots with score >= tau, the protected ones, and the best one.

    Args:
        tau: the least score that stays.   inner: the selector that says what is protected and how many there are at most.
    """

    exact: ClassVar[bool] = False
    tau: Number = 1e-3
    inner: Selector = TopK()

    @property
    def unbounded(self) -> bool:
        return self.inner.unbounded

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.inner.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        best = self.inner(ranking, jnp.ones_like(budget))
        return self.inner(ranking, budget) & (best | ranking.protected | (ranking.scores >= self.tau))
