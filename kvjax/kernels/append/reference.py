"""Appending as its formula reads: for every slot of the pool, which row it gets. For tests and small pools."""

import jax
import jax.numpy as jnp


@jax.jit
def append(pools, rows, start, length, count):
    """Definition of `api.append`."""
    t = jax.tree.leaves(rows)[0].shape[2]
    i = jnp.arange(t)
    wanted = jnp.where(i < count[:, None, None], (start + length)[..., None] + i, -1).reshape(-1)

    def put(pool, new):
        gets = jnp.arange(pool.shape[0])[:, None] == wanted
        new = new.reshape(wanted.size, *pool.shape[1:])[gets.argmax(1)].astype(pool.dtype)
        return jnp.where(gets.any(1).reshape(-1, *(1,) * (pool.ndim - 1)), new, pool)

    return jax.tree.map(put, pools, rows)
