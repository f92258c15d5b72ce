"""Lists of chosen slots, of a static size."""

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Int32, PyTree

from kvjax.types import Number


def listed(chosen: Bool[Array, "b h n"], size: int) -> Int32[Array, "b h size"]:
    """The first `size` chosen slots, ascending; n where there are fewer."""
    return list_of_ranks(jnp.cumsum(chosen, -1, dtype=jnp.int32), 0, size)


def list_of_ranks(ranks: Int32[Array, "b h n"], first: Number, size: int) -> Int32[Array, "b h size"]:
    """The slots where the count of chosen ones, `ranks`, becomes first + 1 to first + size."""
    wanted = first + jnp.arange(1, size + 1, dtype=jnp.int32)
    return jax.vmap(jax.vmap(lambda ranks: jnp.searchsorted(ranks, wanted, side="left")))(ranks).astype(jnp.int32)


def sources(old: PyTree, new: PyTree, length: PyTree, slots: int) -> np.ndarray:
    """For each slot of the new pool the old slot whose row it gets, int32; slots of no region get slot 0's."""
    index = np.zeros(slots, np.int32)
    for a, b, count in zip(*(np.asarray(x).reshape(-1) for x in (old, new, length)), strict=True):
        index[b : b + count] = np.arange(a, a + count)
    return index
