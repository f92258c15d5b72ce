"""The tokens of largest score, as masks and as lists of a static size."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.kernels.select_top import select_top
from kvjax.kernels.select_top.order import ordered
from kvjax.placement.lists import listed


def best(u: Float32[Array, "*b n"], valid: Bool[Array, "*b n"], k: Int32[Array, "*b"]) -> Bool[Array, "*b n"]:
    """topk(u, k) among the valid as a mask; equal scores by lower index."""
    return select_top(jnp.where(valid, ordered(u), jnp.uint32(0)), k)


def as_list(chosen: Bool[Array, "*b n"], most: int) -> tuple[Int32[Array, "*b m"], Int32[Array, "*b"]]:
    """Where a mask is true, ascending, in lists of min(most, n) whose rest is 0; and how many there are."""
    n = chosen.shape[-1]
    most = min(most, n)
    slots = listed(chosen.reshape(1, -1, n), most).reshape(*chosen.shape[:-1], most)
    return jnp.where(slots < n, slots, 0), jnp.minimum(chosen.sum(-1, dtype=jnp.int32), most)


def top_tokens(
    u: Float32[Array, "*b n"], valid: Bool[Array, "*b n"], k: Int32[Array, "*b"], *, most: int
) -> tuple[Int32[Array, "*b m"], Int32[Array, "*b"]]:
    """`best` as a list."""
    return as_list(best(u, valid, k), most)
