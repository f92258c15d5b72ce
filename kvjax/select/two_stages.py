"""Part of a budget by one ranking, the rest by a second (CriticalKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.kernels.select_top import select_top
from kvjax.rank_keys import keys
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


@struct.dataclass
class TwoStages(Selector):
    """The top int(b · first) by score, then the best of the scorer's second ranking until b slots are full.

    Args:
        first: share of a head's budget that goes by score.
        protects: the selector whose protected tokens lead both stages and count in both.

    Source: CriticalKV, arXiv 2502.03805, algorithm 1. Differs: forced slots lead by rank (the release gives them the largest
    float and multiplies it on).
    """

    reads_second: ClassVar[type | None] = Array
    first: Number = 0.5
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        forced = jnp.floor(budget * self.first * (1 + 1e-6) + 1e-6).astype(jnp.int32)
        leads = select_top(keys(ranking), forced)
        rest = keys(ranking.replace(scores=ranking.second))
        return select_top(jnp.where(leads, jnp.uint32(0xFFFFFFFF), rest), jnp.maximum(budget, 1))
