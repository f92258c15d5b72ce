"""Budgets shared out anew: the policy's allocator asked again, with the ranking of all layers and the slots it had.

A row is due when its heads hold more than their budgets together, not head by head. Its total stays what it was, and the sum is
exact after every eviction. No budget exceeds what a head holds (what is gone does not come back) nor what its region has room for
until the next eviction; what such a head would have had goes to the others in proportion to theirs.
"""

import jax.numpy as jnp
from jaxtyping import Array, Int32

from kvjax.allocate import exact_alloc
from kvjax.cache.kv_cache import KVCache
from kvjax.decode.evict.group import Group
from kvjax.stage import Allocator
from kvjax.view import Ranking


def mean_budget(group: Group) -> Int32[Array, " b"]:
    """Mean slots per KV head of each row, as first asked for."""
    layers, _, h = group.budget.shape
    return group.budget.sum((0, 2)) // (layers * h)


def bounded(wish: Int32[Array, "l b h"], total: Int32[Array, " b"], most: Int32[Array, "l b h"]) -> Int32[Array, "l b h"]:
    """Integers of 1 .. most that sum to the total (to Σ most where that is less), in proportion to what was wished for."""
    layers, b, h = wish.shape

    def flat(x):
        return jnp.moveaxis(x, 1, 0).reshape(b, layers * h)

    high = flat(jnp.maximum(most, 1))
    given = exact_alloc(flat(wish).astype(jnp.float32), total, jnp.ones_like(high), high)
    return jnp.moveaxis(given.reshape(b, layers, h), 1, 0)


def reallocated(
    allocate: Allocator, ranking: Ranking, cache: KVCache, group: Group, *, until_next: Int32[Array, " b"]
) -> Int32[Array, "l b h"]:
    """The budgets from now on; a group of all layers. `until_next`: tokens a row may take before the next eviction."""
    held, capacity = group.valid.sum(-1, dtype=jnp.int32), cache.capacity[group.layers]
    wish = jnp.maximum(allocate(ranking, mean_budget(group)), 1).astype(jnp.int32)
    most = jnp.minimum(held, capacity - until_next[:, None])
    return jnp.where(group.due, bounded(wish, group.budget.sum((0, 2)), most), group.budget)
