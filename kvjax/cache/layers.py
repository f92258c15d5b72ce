"""A cache put together layer by layer, in pools that are there from the beginning."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, PyTree

from kvjax.cache.kv_cache import KVCache
from kvjax.cache.layout import plan_regions, resize
from kvjax.types import SLACK, size_class


@partial(jax.jit, donate_argnames="pools")
def _placed(pools, part, base, used):
    """The pools with the first `used` slots of `part` from slot `base` on."""

    def place(pool, rows):
        at = jnp.minimum(base, pool.shape[0] - rows.shape[0])
        index = jnp.arange(rows.shape[0], dtype=jnp.int32) - (base - at)
        mine = ((index >= 0) & (index < used)).reshape(-1, *(1,) * (rows.ndim - 1))
        old = jax.lax.dynamic_slice_in_dim(pool, at, rows.shape[0])
        new = jnp.where(mine, jnp.roll(rows, base - at, axis=0), old)
        return jax.lax.dynamic_update_slice_in_dim(pool, new, at, axis=0)

    return jax.tree.map(place, pools, part)


class Layers:
    """Caches of single layers, one after the other, on their way into one cache: `add` each, then `joined`.

    What lies on the device is copied into the pools at once, so that beside them only the layer at hand is held. Pools have `slots`
    slots, enough for the total asked for; more are taken where layers hold more.
    """

    def __init__(self, slots: int):
        self.slots, self.used = slots, 0
        self.pools: PyTree = None
        self.rest: list[KVCache] = []

    def add(self, cache: KVCache) -> None:
        """Take a layer's cache over; its regions follow those of the layers before."""
        used = int((cache.start + cache.capacity).max())
        self._make_room(cache, used)
        self.pools = _placed(self.pools, cache.pools, np.int32(self.used), np.int32(used))
        without = {name: _none(x) for name, x in cache.pools.items()}
        self.rest.append(cache.replace(**without, start=cache.start + self.used))
        self.used += used

    def _make_room(self, cache: KVCache, used: int) -> None:
        slots = max(self.slots, cache.slots)
        if self.used + used + SLACK > slots:
            slots = size_class(self.used + used + SLACK)
        if self.pools is None:
            self.pools = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), cache.pools)
        elif slots > self.slots:
            self.pools = jax.tree.map(lambda x: jnp.pad(x, ((0, slots - x.shape[0]), *((0, 0),) * (x.ndim - 1))), self.pools)
        self.slots = slots

    def joined(self) -> KVCache:
        """One cache of all layers, in pools of the size class of what they hold."""
        caches, last = self.rest, self.rest[-1]
        by_layer = "start", "length", "capacity", "budget", "memory", "fitted", "tails"
        cache = last.replace(
            **self.pools,
            **{name: _behind([getattr(c, name) for c in caches]) for name in by_layer},
            evidence=tuple(evidence for c in caches for evidence in c.evidence),
        )
        if not cache.placement.on_device:
            cache = cache.replace(v=self._elsewhere(cache))
        fitting = plan_regions(np.asarray(cache.length))[2]
        return cache if fitting == self.slots else resize(cache, np.asarray(cache.length))

    def _elsewhere(self, cache: KVCache) -> PyTree:
        """Values that do not live on the device, moved to where their regions are."""
        stores = [c.v for c in self.rest]
        shift = np.cumsum([0, *(store.shape[0] for store in stores[:-1])])
        old = jnp.concatenate([c.start - c.start.min() + int(s) for c, s in zip(self.rest, shift, strict=True)])
        placement = cache.placement
        return placement.relocate(placement.concatenate(stores), old, cache.start, cache.length, self.slots)


def _none(x: PyTree) -> PyTree:
    """A pool without slots."""
    return jax.tree.map(lambda y: y[:0], x)


def _behind(trees: list[PyTree]) -> PyTree | Array:
    """Layers behind one another."""
    return jax.tree.map(lambda *x: jnp.concatenate(x), *trees)
