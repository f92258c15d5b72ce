"""The best slots of each head, with some protected whatever their score."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import select_top
from kvjax.ranges import Count, Share
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class TopK(Selector):
    """Keep the `budget` best slots of each head; sinks and recent slots are kept first and count inside the budget.

    Args:
        sinks: first positions of the text that always stay.
        recent: last positions that always stay, a count.
        recent_share: last positions that always stay, as a share of the head's budget (added to `recent`).

    When the budget is below the protected count the most recent protected slots stay. Equal scores: the lower position stays.
    """

    sinks: Count = 0
    recent: Count = 0
    recent_share: Share = 0.0

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        recent = self.recent + whole_share(budget, self.recent_share)
        oldest = view.length[:, None] - recent
        return view.valid & ((view.pos < self.sinks) | (view.pos >= oldest[..., None]))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        return select_top(keys(ranking), jnp.maximum(budget, 1))
