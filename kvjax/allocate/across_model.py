"""Budgets that follow the scores, layer against layer and head against head (KVzip)."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, UInt32

from kvjax.allocate.uniform import held
from kvjax.kernels.select_top import select_top
from kvjax.ranges import Count
from kvjax.rank_keys import keys
from kvjax.stage import Allocator
from kvjax.view import Ranking


def counts_of_best(
    rank: UInt32[Array, "l b h n"], total: Int32[Array, " b"], lead: Int32[Array, " b"]
) -> Int32[Array, "l b h"]:
    """How many of a row's `total` best slots, all layers together, fall in each head; its `lead` best always do."""
    best = select_top(rank, jnp.broadcast_to(lead[:, None], rank.shape[:3]))
    forced = jnp.where(best, jnp.uint32(0xFFFFFFFF), rank).swapaxes(0, 1)
    chosen = select_top(forced.reshape(forced.shape[0], -1), total).reshape(forced.shape)
    return chosen.sum(-1).astype(jnp.int32).swapaxes(0, 1)


@struct.dataclass
class AcrossModel(Allocator):
    """b_lh = the number of head h's slots among the L·H·mean best of the whole model; protected slots always win.

    Args:
        lower: slots that every head keeps beforehand, at least 1, and no more than the mean.

    Scores of different layers are compared as they are, so they must have one scale, as probabilities have. Equal scores: the lower
    layer, head and position first.
    Source: KVzip, arXiv 2505.23416, section 3.3 (its non-uniform budgets).
    """

    lower: Count = 1

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        layers, _, h = ranking.valid.shape[:3]
        total = jnp.minimum(mean_budget * (layers * h), held(ranking).sum((0, 2)))
        lead = jnp.minimum(jnp.maximum(self.lower, 1), mean_budget)
        return counts_of_best(keys(ranking), total, lead)
