"""Where regions stand in a pool: integers planned on the host, and caches moved to pools of another size."""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.cache import KVCache
from kvjax.heap import trim
from kvjax.kernels.compact import move_regions
from kvjax.types import ALIGN, SLACK, size_class


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


def _fresh(x):
    """A copy in the same memory: the step that will own it may overwrite it."""
    return jax.device_put(x, x.sharding, may_alias=False) if isinstance(x, jax.Array) else x


def _committed(x):
    """Bound to its device, as what a step gives back is: a step that is fed again would be compiled again otherwise."""
    return jax.device_put(x, x.sharding)


def resize(cache: KVCache, capacity: np.ndarray, reserve_slots: int = 0) -> KVCache:
    """The same cache in a pool with these capacities (each at least its length).

    It shares no buffer with the old one but what decoding only reads.
    """
    trim()
    start, capacity, slots = plan_regions(np.maximum(capacity, cache.lengths), reserve_slots)
    pooled = [name for name in ("k", "v", "pos", "stats") if name != "v" or cache.values.home == "device"]
    source, to = {name: getattr(cache, name) for name in pooled}, jnp.asarray(start)
    moved = move_regions(source, cache.start, to, cache.length, slots=slots)
    pools = jax.tree.map(_committed, moved | dict(start=to, capacity=jnp.asarray(capacity)))
    if "v" not in pooled:
        pools["v"] = cache.values.relocate(cache.v, cache.start, pools["start"], cache.length, slots)
    owned, read = cache.split()
    rest = {f.name: getattr(owned, f.name) for f in fields(owned) if f.name not in pools}
    return KVCache(**pools, **jax.tree.map(_fresh, rest)).joined(read)


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
