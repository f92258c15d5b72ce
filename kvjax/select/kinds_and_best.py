"""Tokens that stay whatever comes, and the best of the others in what the budget leaves (FastGen)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.kernels.select_top import select_top
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class KindsAndBest(Selector):
    """Slots whose second ranking is not 0 stay; of the others the best fill the budget less the slots of rank 1.

    Slots scored -inf never stay. Slots of rank 2 are beside the budget, so what is held grows: use it with `Every(1, grows=True)`.
    """

    exact: ClassVar[bool] = False
    reads_second: ClassVar[type | None] = Array
    unbounded: ClassVar[bool] = True

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        return jnp.zeros_like(view.valid)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        stay = ranking.valid & (ranking.second > 0)
        room = budget - (ranking.valid & (ranking.second == 1)).sum(-1)
        others = ranking.replace(valid=ranking.valid & ~stay & (ranking.scores > -jnp.inf))
        return stay | select_top(keys(others), room)
