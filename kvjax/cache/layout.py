"""Where regions stand in a pool: integers planned on the host, and caches moved to pools of another size."""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from kvjax.cache.heap import trim
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.parts import counted, reserved
from kvjax.kernels.compact import host, move_regions
from kvjax.placement.lists import sources
from kvjax.types import ALIGN, AT_REST, DECODING, SLACK, Regions, size_class


def plan_regions(
    capacity: np.ndarray, reserve_slots: int = 0, align: int = ALIGN, *, steps: int = AT_REST
) -> tuple[np.ndarray, np.ndarray, int]:
    """Capacities int [L, B, H], rounded up to multiples of `align` → (starts, capacities, slots of the pool).

    The pool is of one of `steps` size classes a power of two, that of `reserve_slots` at least.

    Regions follow each other layer by layer, so that a layer's slots are neighbours. The pool counts the worst case of
    alignment for every region: its size class depends on the total asked for, never on how heads share it.
    """
    asked = int(np.maximum(capacity, 1).sum(dtype=np.int64)) + capacity.size * (align - 1)
    capacity = -(-np.maximum(capacity, 1) // align) * align
    ends = np.cumsum(capacity.reshape(-1), dtype=np.int64)
    if ends[-1] >= 2**31 - SLACK:
        raise ValueError(f"the pool would need {ends[-1]} slots, beyond 32-bit indices: use fewer rows or a smaller budget")
    start = np.concatenate([[0], ends[:-1]]).reshape(capacity.shape)
    slots = _pool(max(asked, reserve_slots) + SLACK, align, steps)
    return start.astype(np.int32), capacity.astype(np.int32), slots


def _pool(slots: int, align: int, steps: int) -> int:
    """Slots of the smallest pool of a size class that holds so many."""
    return -(-size_class(slots, steps) // align) * align


def decodes_as_it_is(cache: KVCache, capacity: np.ndarray, reserve_slots: int, *, grows: bool) -> bool:
    """Whether tokens can be appended to the pool where it lies, up to these capacities, by the program of its size class.

    What only `grows` may lie in a pool of a larger class than it needs: its room was asked for. What evicts while decoding may not:
    room that an eviction left is given back.
    """
    wanted = plan_regions(np.maximum(capacity, cache.lengths), reserve_slots, cache.align, steps=DECODING)[2]
    larger = grows and cache.slots > wanted and _pool(cache.slots, cache.align, DECODING) == cache.slots
    fits = bool((np.asarray(cache.capacity) >= capacity).all()) and cache.placement.on_device
    return fits and (cache.slots == wanted or larger)


def copied(cache: KVCache) -> KVCache:
    """The same cache, region for region; it shares no buffer with the old one but what decoding only reads."""
    trim()
    owned, read = cache.split()
    return jax.tree.map(_fresh, owned).joined(read)


def _fresh(x):
    """A copy in the same memory: the step that will own it may overwrite it."""
    return jax.device_put(x, x.sharding, may_alias=False) if isinstance(x, jax.Array) else x


def _committed(x):
    """Bound to its device, as what a step gives back is: a step that is fed again would be compiled again otherwise."""
    return jax.device_put(x, x.sharding)


def resize(cache: KVCache, capacity: np.ndarray | Sequence[np.ndarray], reserve_slots: int = 0, *, steps: int = AT_REST) -> KVCache:
    """The same cache in a pool with these capacities (each at least its length); where parts hold the slots, those of each part.

    The pool is of one of `steps` size classes a power of two. It shares no buffer with the old one but what decoding only reads.
    """
    trim()
    if cache.parts:
        return _resized_parts(cache, capacity, reserve_slots, steps)
    start, capacity, slots = plan_regions(np.maximum(capacity, cache.lengths), reserve_slots, cache.align, steps=steps)
    to = jnp.asarray(start)
    moved = _moved(cache, to, slots)
    pools = jax.tree.map(_committed, moved | dict(start=to, capacity=jnp.asarray(capacity)))
    if not cache.placement.on_device:
        pools["v"] = cache.placement.relocate(cache.v, cache.start, pools["start"], cache.length, slots)
    owned, read = cache.split()
    rest = {f.name: getattr(owned, f.name) for f in fields(owned) if f.name not in pools}
    return KVCache(**pools, **jax.tree.map(_fresh, rest)).joined(read)


def _resized_parts(cache: KVCache, capacity: Sequence[np.ndarray], reserve_slots: int, steps: int) -> KVCache:
    """Every part in a pool of its own capacities."""
    pairs = zip(cache.parts, capacity, strict=True)
    parts = tuple(resize(part, of_part, reserved(part, cache, reserve_slots), steps=steps) for part, of_part in pairs)
    owned, read = cache.replace(parts=()).split()
    rest = {f.name: jax.tree.map(_fresh, getattr(owned, f.name)) for f in fields(owned)}
    return jax.tree.map(_committed, counted(KVCache(**rest | {"parts": parts}))).joined(read)


def _moved(cache: KVCache, to: Regions, slots: int) -> dict[str, PyTree]:
    """The cache's pools with every region where it will stand: row by row of a slot, page by page of several."""
    if host.reaches(cache.pools):
        move = partial(host.move_regions, old=cache.start, new=to, length=cache.length, held=cache.slots, slots=slots)
        return jax.tree.map(lambda x: _fresh(jax.device_put(move(x), x.sharding)), cache.pools)
    leaves, form = jax.tree.flatten(cache.pools)
    by_slot = [x for x in leaves if x.shape[0] == cache.slots]
    rows = iter(move_regions(by_slot, cache.start, to, cache.length, slots=slots))
    moved = [next(rows) if x.shape[0] == cache.slots else _moved_pages(x, cache, to, slots) for x in leaves]
    return jax.tree.unflatten(form, moved)


def _moved_pages(pages: Array, cache: KVCache, to: Regions, slots: int) -> Array:
    """What pages of slots share, moved as their slots are."""
    page = cache.slots // pages.shape[0]
    old, new = np.asarray(cache.start) // page, np.asarray(to) // page
    return jnp.take(pages, sources(old, new, -(-cache.lengths // page), slots // page), axis=0)
