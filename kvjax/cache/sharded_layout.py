"""A sharded cache in pools of another size: every device moves its own regions, by one program."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh
from jaxtyping import Array, Int32

from kvjax.cache.layout import plan_regions
from kvjax.cache.mesh import EACH
from kvjax.cache.sharded import Form, ShardedCache, spread
from kvjax.kernels.compact import move_regions
from kvjax.placement.lists import sources
from kvjax.types import DECODING


def resize_sharded(cache: ShardedCache, capacity: np.ndarray, reserve_slots: int = 0) -> ShardedCache:
    """The same cache in pools with these capacities, int [rows, heads, L, b, h], each at least its length.

    All pools get the size class (`DECODING`) of the fullest device, or of `reserve_slots` on each; no buffer is shared.
    """
    align, lengths = cache.one.align, cache.numbers("length")
    wanted = np.maximum(capacity, lengths).reshape(cache.mesh.size, *cache.one.start.shape)
    asked = max(int(np.maximum(own, 1).sum()) + own.size * (align - 1) for own in wanted)
    plans = [plan_regions(own, max(asked, reserve_slots), align, steps=DECODING) for own in wanted]
    start, room, slots = np.stack([p[0] for p in plans]), np.stack([p[1] for p in plans]), plans[0][2]
    mine, pages = cache.here, sorted({cache.slots // x.shape[0] for x in jax.tree.leaves(cache.one.pools)} - {1})
    regions = (spread({place: x[place] for place in mine}, cache.mesh) for x in (start, room))
    old, length = (x.reshape(wanted.shape) for x in (cache.numbers("start"), lengths))
    moved = {place: _moved_pages(old[place], start[place], length[place], slots, pages) for place in mine}
    by_page = {page: spread({place: x[page] for place, x in moved.items()}, cache.mesh) for page in pages}
    return cache.with_leaves(_resize(cache.leaves, *regions, by_page, mesh=cache.mesh, form=cache.form, slots=slots))


def _moved_pages(old: np.ndarray, new: np.ndarray, length: np.ndarray, slots: int, pages: list[int]) -> dict[int, np.ndarray]:
    """For every size of page which old page each new one gets."""
    return {page: sources(old // page, new // page, -(-length // page), slots // page) for page in pages}


@partial(jax.jit, static_argnames=("mesh", "form", "slots"))
def _resize(leaves, start, capacity, by_page: dict[int, Int32[Array, " p"]], *, mesh: Mesh, form: Form, slots: int):
    """Every device's leaves with its regions moved."""

    @partial(jax.shard_map, mesh=mesh, in_specs=EACH, out_specs=EACH, check_vma=False)
    def on_device(leaves, start, capacity, by_page):
        cache = jax.tree.unflatten(form, leaves)
        flat, tree = jax.tree.flatten(cache.pools)
        by_slot = iter(move_regions(_by_slot(flat, cache.slots), cache.start, start, cache.length, slots=slots))

        def page(x):
            return cache.slots // x.shape[0]

        moved = [next(by_slot) if page(x) == 1 else jnp.take(x, by_page[page(x)], axis=0) for x in flat]
        new = cache.replace(**jax.tree.unflatten(tree, moved), start=start, capacity=capacity)
        return tuple(jax.tree.leaves(new))

    return on_device(leaves, start, capacity, by_page)


def _by_slot(leaves: list[Array], slots: int) -> list[Array]:
    """Pools with a row for every slot."""
    return [x for x in leaves if x.shape[0] == slots]
