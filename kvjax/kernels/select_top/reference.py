"""The k largest as the words say: sort, number, cut."""

import jax
import jax.numpy as jnp

from kvjax.order import places


@jax.jit
def select(rank, k):
    """Definition of `api.select_top`, of rows [r, n]."""
    place = places(jnp.argsort(~rank, -1, stable=True))
    return (place < k[:, None]) & (rank > 0)
