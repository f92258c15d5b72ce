"""Moving slots as its formulas read: every slot of the new pool looks up its source. For tests; nothing is in place."""

from functools import partial

import jax
import jax.numpy as jnp


@jax.jit
def compact(pools, start, moves):
    """Definition of `api.compact`."""
    size = jax.tree.leaves(pools)[0].shape[0]
    real = jnp.arange(moves.sources.shape[-1]) < moves.count[..., None]

    def at(offsets):
        return jnp.where(real, start[..., None] + offsets, size).reshape(-1)

    look_up = jnp.arange(size).at[at(moves.targets)].set(at(moves.sources), mode="drop")
    return jax.tree.map(lambda x: x[look_up], pools)


@jax.jit
def rewrite(pools, rows, slots, count):
    """Definition of `api.rewrite`."""
    real = jnp.arange(slots.shape[-1]) < count[..., None]

    def put(pool, new):
        where = jnp.where(real, slots, pool.shape[0]).reshape(-1)
        return pool.at[where].set(new.reshape(where.size, *pool.shape[1:]).astype(pool.dtype), mode="drop")

    return jax.tree.map(put, pools, rows)


@jax.jit
def pick(pools, rows, order, start, count):
    """Definition of `api.pick`."""
    i = jnp.arange(order.shape[-1])
    taken = jax.tree.map(lambda x: jnp.take_along_axis(x, order.reshape(*order.shape, *(1,) * (x.ndim - 3)), 2), rows)
    return rewrite(pools, taken, start[..., None] + i, count)


@partial(jax.jit, static_argnames=("slots",))
def move_regions(source, old, new, length, *, slots: int):
    """Definition of `api.move_regions`."""
    old, new, length = (x.reshape(-1) for x in (old, new, length))
    offset = jnp.arange(slots)[:, None] - new
    mine = (offset >= 0) & (offset < length)
    look_up = jnp.where(mine, old + offset, 0).sum(1)

    def clear(x):
        return mine.any(1).reshape(-1, *(1,) * (x.ndim - 1))

    return jax.tree.map(lambda x: jnp.where(clear(x), x[look_up], 0), source)
