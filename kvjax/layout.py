"""Where regions stand in a pool: integers planned on the host, and the jitted loops that move slots between pools."""

from dataclasses import fields
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from kvjax.cache import KVCache
from kvjax.heap import trim
from kvjax.types import ALIGN, SLACK, size_class

#: Slots moved at a time.
_BLOCK = 256


def plan_regions(capacity: np.ndarray, reserve_slots: int = 0) -> tuple[np.ndarray, np.ndarray, int]:
    """Aligned capacities int [L, B, H] → (starts, capacities, slots of the pool, a size class).

    Regions follow each other layer by layer, so that a layer's slots are neighbours. The pool counts the worst case of
    alignment for every region: its size class depends on the total asked for, never on how heads share it.
    """
    asked = int(np.maximum(capacity, 1).sum(dtype=np.int64)) + capacity.size * (ALIGN - 1)
    capacity = -(-np.maximum(capacity, 1) // ALIGN) * ALIGN
    ends = np.cumsum(capacity.reshape(-1), dtype=np.int64)
    if ends[-1] >= 2**31 - SLACK:
        raise ValueError(f"the pool would need {ends[-1]} slots, beyond 32-bit indices: use fewer rows or a smaller budget")
    start = np.concatenate([[0], ends[:-1]]).reshape(capacity.shape)
    slots = size_class(max(asked, reserve_slots) + SLACK)
    return start.astype(np.int32), capacity.astype(np.int32), slots


def _copy_region(r, pools, *, source, old, new, length):
    """Copy one region's slots block by block; the last block may run past it, into what is written next."""

    def block(i, pools):
        rows = [lax.dynamic_slice_in_dim(x, old[r] + i * _BLOCK, _BLOCK) for x in source]
        put = lambda pool, x: lax.dynamic_update_slice_in_dim(pool, x, new[r] + i * _BLOCK, 0)  # noqa: E731
        return [put(pool, x) for pool, x in zip(pools, rows, strict=True)]

    return lax.fori_loop(0, -(-length[r] // _BLOCK), block, pools)


@partial(jax.jit, static_argnames=("slots",))
def move_regions(source, old, new, length, *, slots: int):
    """Copy every region from where it stands in the `source` arrays [s, ...] to where it will stand in new pools of `slots`."""
    pools = [jnp.zeros((slots, *x.shape[1:]), x.dtype) for x in source]
    old, new, length = (x.reshape(-1) for x in (old, new, length))
    copy = partial(_copy_region, source=source, old=old, new=new, length=length)
    return lax.fori_loop(0, length.shape[0], copy, pools)


def _fresh(x):
    """A copy in the same memory: the step that will own it may overwrite it."""
    return jax.device_put(x, x.sharding, may_alias=False) if isinstance(x, jax.Array) else x


def resize(cache: KVCache, capacity: np.ndarray, reserve_slots: int = 0) -> KVCache:
    """The same cache in a pool with these capacities (each at least its length); it shares no buffer with the old one."""
    trim()
    start, capacity, slots = plan_regions(np.maximum(capacity, cache.lengths), reserve_slots)
    pooled = [name for name in ("k", "v", "pos", "stats") if name != "v" or cache.values.home == "device"]
    source, shape = jax.tree.flatten({name: getattr(cache, name) for name in pooled})
    moved = move_regions(source, cache.start, jnp.asarray(start), cache.length, slots=slots)
    pools = jax.tree.unflatten(shape, moved) | dict(start=jnp.asarray(start), capacity=jnp.asarray(capacity))
    if "v" not in pooled:
        pools["v"] = cache.values.relocate(cache.v, cache.start, pools["start"], cache.length, slots)
    rest = {f.name: getattr(cache, f.name) for f in fields(cache) if f.name not in pools}
    made = KVCache(**pools, **jax.tree.map(_fresh, rest))
    return made.adopted(cache.replace(v=made.v))


def stack(caches: list[KVCache]) -> KVCache:
    """The rows of several caches as one batch, so that they decode together; none of them changes."""
    if not caches:
        raise ValueError("expected at least one cache to stack; got an empty list")
    shapes = {(c.start.shape[0], c.start.shape[2], c.k.shape[1:], str(c.k.dtype), tuple(c.stats), c.values) for c in caches}
    if len(shapes) > 1:
        raise ValueError(f"caches of different models or encodings cannot share a pool: {sorted(map(str, shapes))}")
    shift = np.cumsum([0] + [c.slots for c in caches[:-1]])
    cat = lambda xs, axis: jnp.concatenate(xs, axis)  # noqa: E731
    pools = jax.tree.map(lambda *x: cat(x, 0), *[(c.k, c.pos, c.stats) for c in caches])
    rows = {f: cat([getattr(c, f) for c in caches], 1) for f in ("length", "capacity", "budget")}
    start = cat([c.start + int(s) for c, s in zip(caches, shift, strict=True)], 1)
    heads = {f: cat([getattr(c, f) for c in caches], 0) for f in ("position", "steps", "logits")}
    evidence = jax.tree.map(lambda *x: cat(x, 0), *[c.evidence for c in caches])
    memory = {name: cat([c.memory[name] for c in caches], 1) for name in caches[0].memory}
    values, states = caches[0].values, [c.retrieval for c in caches]
    k, pos, stats = pools
    v = cat([c.v for c in caches], 0) if values.home == "device" else values.concatenate([c.v for c in caches])
    joined = KVCache(
        k=k, v=v, pos=pos, stats=stats, start=start, evidence=evidence, memory=memory, values=values,
        retrieval=states[0].stack(states) if states[0] != () else (), **rows, **heads,
    )  # fmt: skip
    return resize(joined, np.asarray(joined.capacity))
