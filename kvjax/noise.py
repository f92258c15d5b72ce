"""Random numbers that depend on a seed and on where they stand, never on what is computed beside them.

A row of a batch, or a prompt padded to another length, so draws what it draws alone.
"""

from functools import reduce

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float32, PyTree

from kvjax.types import Number


def keys_at(seed: Number, *where: PyTree) -> Array:
    """A PRNG key for every entry of the broadcast of `where`: the seed, folded with each index in turn."""

    def fold(keys: Array, index: Number) -> Array:
        shape = jnp.broadcast_shapes(keys.shape, jnp.shape(index))
        flat = jnp.broadcast_to(jnp.asarray(index, jnp.int32), shape).reshape(-1)
        return jax.vmap(jax.random.fold_in)(jnp.broadcast_to(keys, shape).reshape(-1), flat).reshape(shape)

    return reduce(fold, where, jax.random.key(seed))


def uniform_at(seed: Number, *where: PyTree) -> Float32[Array, "..."]:
    """u ~ U[0, 1) at every index, a multiple of 2^-23."""
    keys = keys_at(seed, *where)
    return jax.vmap(jax.random.uniform)(keys.reshape(-1)).reshape(keys.shape)


def gumbel_at(seed: Number, *where: PyTree) -> Float32[Array, "..."]:
    """Standard Gumbel noise -ln(-ln u) at every index."""
    keys = keys_at(seed, *where)
    return jax.vmap(jax.random.gumbel)(keys.reshape(-1)).reshape(keys.shape)
