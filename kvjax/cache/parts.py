"""A cache whose slots are held by parts: put together, and counted."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32

from kvjax.cache.kv_cache import KVCache, SlotState
from kvjax.evidence import Evidence
from kvjax.types import Logits, Regions


def together(
    parts: Sequence[KVCache], *, position: Int32[Array, " b"], logits: Logits, made_by: UInt32[Array, " b"], budget: Regions,
    evidence: tuple[Evidence, ...],
) -> KVCache:  # fmt: skip
    """A cache of these parts, which keep no logits and no evidence of their own."""

    def none():
        return jnp.zeros((len(position), 0), jnp.float32)

    def own(part):
        return part.replace(logits=none(), evidence=(), position=jnp.copy(part.position), made_by=jnp.copy(part.made_by))

    bare = tuple(map(own, parts))

    def of_heads():
        return jnp.zeros(budget.shape, jnp.int32)

    cache = KVCache(
        k=(), v=(), pos=jnp.zeros(0, bare[0].pos.dtype), state=SlotState(), start=of_heads(), length=of_heads(),
        capacity=of_heads(), budget=budget, position=position, steps=jnp.zeros_like(position), logits=logits, made_by=made_by,
        evidence=evidence, placement=bare[0].placement, positions=bare[0].positions, parts=bare,
    )  # fmt: skip
    return counted(cache)


def counted(cache: KVCache) -> KVCache:
    """The cache with the lengths and capacities of its parts summed again."""
    length, capacity = (_sums([getattr(part, name) for part in cache.parts], cache) for name in ("length", "capacity"))
    return cache.replace(length=length, capacity=capacity)


def _sums(xs: Sequence[Int32[Array, "_ b h"]], cache: KVCache) -> Regions:
    """The sum over parts of numbers by layer, row and head, each part at its layers."""
    total = jnp.zeros(cache.budget.shape, jnp.int32)
    for x, part in zip(xs, cache.parts, strict=True):
        total = total.at[part.first : part.first + x.shape[0]].add(x)
    return total


def reserved(part: KVCache, cache: KVCache, reserve_slots: int) -> int:
    """A part's share of slots reserved for all layers."""
    return -(-reserve_slots * part.start.shape[0] // cache.budget.shape[0])
