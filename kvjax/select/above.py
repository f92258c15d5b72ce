"""The first and recent slots, and of the others those whose score reaches a threshold, as many as there are (DMS, KVzap)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.kernels.select_top import select_top
from kvjax.ranges import Count
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


@struct.dataclass
class AboveOrRecent(Selector):
    """Slot i stays where i < sinks, t - i < recent or u_i >= tau, t the newest position; a head's best slot always stays.

    The budget is not asked: what is held grows with the text, so use it with `Every(1, grows=True)` or after the prompt.

    Args:
        tau: the least score that stays.   recent: last positions that stay whatever their score.   sinks: and first ones.
    """

    exact: ClassVar[bool] = False
    unbounded: ClassVar[bool] = True
    tau: Number = 0.0
    recent: Count = 128
    sinks: Count = 0

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        late = view.pos >= (view.length - self.recent)[:, None, None]
        return view.valid & (late | (view.pos < self.sinks))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        best = select_top(keys(ranking), jnp.ones_like(budget))
        return ranking.valid & (best | ranking.protected | (ranking.scores >= self.tau))
