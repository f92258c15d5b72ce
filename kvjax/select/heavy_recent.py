"""Heavy hitters and recent tokens in a fixed ratio, sinks among the heavy ones (D2O)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import select_top
from kvjax.ranges import Count, Share
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def heavy_slots(budget: Int32[Array, "b h"], share: Number) -> Int32[Array, "b h"]:
    """N = floor(budget · share), but at most budget - 1: one recent slot there always is."""
    heavy = whole_share(budget, share)
    return jnp.clip(heavy, 0, jnp.maximum(budget - 1, 0))


@struct.dataclass
class HeavyRecent(Selector):
    """Of b slots the last M = b - N stay, and N = floor(b · heavy_share) go to the sinks first, then to the highest scores.

    Args:
        sinks: first positions of the text that stay, inside N (fewer where N is smaller).
        heavy_share: share of a head's budget for sinks and heavy hitters; 3/4 is N:M = 3:1.

    Equal scores: the lower position stays. Source: D2O, arXiv 2406.13035, equations 7-8. Differs: the paper's text counts the
    sinks in the recent window; here as in the release they count in N, so a head holds b slots.
    """

    sinks: Count = 4
    heavy_share: Share = 0.75

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        heavy = heavy_slots(budget, self.heavy_share)
        first, oldest = jnp.minimum(self.sinks, heavy), view.length[:, None] - (budget - heavy)
        return view.valid & ((view.pos < first[..., None]) | (view.pos >= oldest[..., None]))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        return select_top(keys(ranking), jnp.maximum(budget, 1))
