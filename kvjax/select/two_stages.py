"""Part of a budget by one ranking, the rest by a second (CriticalKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import whole_share
from kvjax.kernels.select_top import select_top
from kvjax.ranges import Share
from kvjax.rank_keys import keys
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class TwoStages(Selector):
    """The top int(b · first) by score, then the best of the scorer's second ranking until b slots are full.

    Args:
        first: share of a head's budget that goes by score.
        safe: share of the mean budget of a layer's heads that goes by score in every head, if that is more.
        protects: the selector whose protected tokens lead both stages and count in both.

    Source: CriticalKV, arXiv 2502.03805, algorithm 1. Differs: forced slots lead by rank (the release gives them the largest
    float and multiplies it on).
    """

    reads_second: ClassVar[type | None] = Array
    first: Share = 0.5
    safe: Share = 0.0
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        mean = budget.sum(-1, keepdims=True) // budget.shape[-1]
        forced = jnp.maximum(whole_share(budget, self.first), jnp.minimum(whole_share(mean, self.safe), budget))
        leads = select_top(keys(ranking), forced)
        rest = keys(ranking.replace(scores=ranking.second))
        return select_top(jnp.where(leads, jnp.uint32(0xFFFFFFFF), rest), jnp.maximum(budget, 1))
