"""First and last tokens stay whatever the scores, which others read (CaM over attention sinks)."""

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
class SinksAndRecent(Selector):
    """The first `sinks` tokens and the latest others fill the budget; scores are left to mergers.

    Source: StreamingLLM, arXiv 2309.17453.
    """

    sinks: Count = 4

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        return view.valid & (view.pos < self.sinks)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        by_position = ranking.replace(scores=ranking.pos.astype(jnp.float32))
        return select_top(keys(by_position), jnp.maximum(budget, 1))
