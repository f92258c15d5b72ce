"""Some by score, recent or not, and the most recent of the rest (SirLLM)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.kernels.select_top import select_top
from kvjax.ranges import Count
from kvjax.rank_keys import keys
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class BestAndRecent(Selector):
    """Of b slots the max(b - sinks - recent, 0) best of all and the sinks stay, then the most recent until b slots are full.

    Where the best are sinks or recent, more recent ones fill their place. Equal scores: the lower position stays.

    Args:
        sinks: first positions that stay, at most b.   recent: slots left to recency.

    Source: SirLLM, arXiv 2405.12528, section 3.
    """

    sinks: Count = 4
    recent: Count = 0

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return view.valid & (view.pos < jnp.minimum(self.sinks, budget)[..., None])

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        b = jnp.maximum(budget, 1)
        nothing = jnp.zeros_like(ranking.protected)
        best = select_top(keys(ranking.replace(protected=nothing)), b - self.sinks - self.recent)
        newest = keys(ranking.replace(protected=nothing, scores=ranking.pos.astype(jnp.float32)))
        return select_top(jnp.where(ranking.valid & (best | ranking.protected), jnp.uint32(0xFFFFFFFF), newest), b)
