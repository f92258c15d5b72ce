"""Which slots new tokens get."""

import jax.numpy as jnp
from jaxtyping import Array, Int32


def behind(
    start: Int32[Array, "b h"], length: Int32[Array, "b h"], count: Int32[Array, " b"], *, t: int, slots: int
) -> Int32[Array, "b h t"]:
    """Where a step's t tokens go: start + length + i for i < count[b]; `slots`, which no pool of that size has, for the rest."""
    i = jnp.arange(t, dtype=jnp.int32)
    return jnp.where(i < count[:, None, None], (start + length)[..., None] + i, slots)
