"""Where regions stand in a pool: integers planned on the host, and caches moved to pools of another size."""

from dataclasses import fields

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import PyTree

from kvjax.cache.heap import trim
from kvjax.cache.kv_cache import KVCache
from kvjax.cache.retriever_state import RetrieverState
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
    to = jnp.asarray(start)
    moved = move_regions(cache.pools, cache.start, to, cache.length, slots=slots)
    pools = jax.tree.map(_committed, moved | dict(start=to, capacity=jnp.asarray(capacity)))
    if not cache.placement.on_device:
        pools["v"] = cache.placement.relocate(cache.v, cache.start, pools["start"], cache.length, slots)
    owned, read = cache.split()
    rest = {f.name: getattr(owned, f.name) for f in fields(owned) if f.name not in pools}
    return KVCache(**pools, **jax.tree.map(_fresh, rest)).joined(read)


def stack(caches: list[KVCache]) -> KVCache:
    """The rows of several caches as one batch, so that they decode together; none of them changes."""
    if not caches:
        raise ValueError("expected at least one cache to stack; got an empty list")
    shapes = {(c.start.shape[0], c.start.shape[2], _rows(c.k), _rows(c.state), c.placement, c.positions) for c in caches}
    if len(shapes) > 1:
        raise ValueError(f"caches of different models or encodings cannot share a pool: {sorted(map(str, shapes))}")
    shift = np.cumsum([0] + [c.slots for c in caches[:-1]])
    start = jnp.concatenate([c.start + int(s) for c, s in zip(caches, shift, strict=True)], 1)
    states, first = [c.retrieval for c in caches], caches[0]
    joined = KVCache(
        k=_joined([c.k for c in caches], 0),
        v=first.placement.concatenate([c.v for c in caches]),
        pos=_joined([c.pos for c in caches], 0),
        state=_joined([c.state for c in caches], 0),
        start=start,
        length=_joined([c.length for c in caches], 1),
        capacity=_joined([c.capacity for c in caches], 1),
        budget=_joined([c.budget for c in caches], 1),
        position=_joined([c.position for c in caches], 0),
        steps=_joined([c.steps for c in caches], 0),
        logits=_joined([c.logits for c in caches], 0),
        evidence=_joined([c.evidence for c in caches], 0),
        memory=_joined([c.memory for c in caches], 1),
        fitted=_joined([c.fitted for c in caches], 1),
        retrieval=states[0].stack(states) if isinstance(states[0], RetrieverState) else (),
        placement=first.placement,
        positions=first.positions,
    )
    return resize(joined, np.asarray(joined.capacity))


def _rows(pools: PyTree) -> str:
    """The shape of a slot in a pytree of pools."""
    return str(jax.tree.map(lambda x: (x.shape[1:], str(x.dtype)), pools))


def _joined(trees: list[PyTree], axis: int) -> PyTree:
    """Pytrees of arrays behind one another along an axis."""
    return jax.tree.map(lambda *x: jnp.concatenate(x, axis), *trees)
