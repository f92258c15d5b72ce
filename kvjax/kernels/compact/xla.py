"""Moving slots in plain XLA: loops whose trip counts are data, so that what does not move costs nothing."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from kvjax.types import BLOCK


@jax.jit
def compact(pools, start, moves):
    """See `api.compact`."""
    start, sources, targets, count = map(flat, (start[..., None], moves.sources, moves.targets, moves.count[..., None]))

    def move(r, i, pools):
        def row(x):
            return lax.dynamic_slice_in_dim(x, start[r, 0] + sources[r, i], 1)

        def put(x):
            return lax.dynamic_update_slice_in_dim(x, row(x), start[r, 0] + targets[r, i], 0)

        return jax.tree.map(put, pools)

    return each(count[:, 0], move, pools)


@jax.jit
def rewrite(pools, rows, slots, count):
    """See `api.rewrite`."""
    rows, slots, count = jax.tree.map(flat, (rows, slots, count[..., None]))

    def write(r, i, pools):
        def put(x, new):
            row = lax.dynamic_slice(new, (r, i, *(0,) * (x.ndim - 1)), (1, 1, *x.shape[1:]))[0]
            return lax.dynamic_update_slice_in_dim(x, row.astype(x.dtype), slots[r, i], 0)

        return jax.tree.map(put, pools, rows)

    return each(count[:, 0], write, pools)


@jax.jit
def pick(pools, rows, order, start, count):
    """See `api.pick`, block by block; a region's last block may run past it, into what is written next."""
    rows, order, start, count = jax.tree.map(flat, (rows, order, start[..., None], count[..., None]))

    def block(r, i, pools):
        taken = order.at[r, i * BLOCK + jnp.arange(BLOCK)].get(mode="clip")

        def put(pool, x):
            new = x.at[r, taken].get(mode="clip").astype(pool.dtype)
            return lax.dynamic_update_slice_in_dim(pool, new, start[r, 0] + i * BLOCK, 0)

        return jax.tree.map(put, pools, rows)

    return each(-(-count[:, 0] // BLOCK), block, pools)


@partial(jax.jit, static_argnames=("slots",))
def move_regions(source, old, new, length, *, slots: int):
    """See `api.move_regions`; a region's last block may run past it, into what is written next."""
    pools = jax.tree.map(lambda x: jnp.zeros((slots, *x.shape[1:]), x.dtype), source)
    old, new, length = (x.reshape(-1) for x in (old, new, length))

    def block(r, i, pools):
        def rows(x):
            return lax.dynamic_slice_in_dim(x, old[r] + i * BLOCK, BLOCK)

        def put(pool, x):
            return lax.dynamic_update_slice_in_dim(pool, rows(x), new[r] + i * BLOCK, 0)

        return jax.tree.map(put, pools, source)

    return each(-(-length // BLOCK), block, pools)


def each(count, f, pools):
    """f(region, i, pools) for i < count of every region, one after the other."""

    def region(r, pools):
        return lax.fori_loop(0, count[r], lambda i, pools: f(r, i, pools), pools)

    return lax.fori_loop(0, count.shape[0], region, pools)


def flat(x):
    """Rows and KV heads as one axis."""
    return x.reshape(x.shape[0] * x.shape[1], *x.shape[2:])
