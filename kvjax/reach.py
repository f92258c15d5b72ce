"""Tokens that a sliding window has left behind: no query to come reads them."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.kernels.select_top import ordered


def in_reach(
    pos: Int32[Array, "*l b h n"], length: Int32[Array, " b"], window: Int32[Array, "*l b"] | None
) -> Bool[Array, "*l b h n"]:
    """Whether the next query, at `length`, sees a slot: length - pos_j < window; all where layers have no window (None)."""
    if window is None:
        return jnp.ones(pos.shape, bool)
    return (length[:, None, None] - pos) < window[..., None, None]


def within_reach(
    scores: Float32[Array, "*l b h n"],
    pos: Int32[Array, "*l b h n"],
    length: Int32[Array, " b"],
    window: Int32[Array, "*l b"] | None,
) -> Float32[Array, "*l b h n"]:
    """The scores; lower than all of these, in their own order, where no query to come reads a slot: it is kept last."""
    return scores if window is None else jnp.where(in_reach(pos, length, window), scores, below_all(scores))


def below_all(u: Float32[Array, "*x"]) -> Float32[Array, "*x"]:
    """Finite numbers from -2^128 to -2^127 in the order of u, of which the sign, the exponent and 14 bits behind it count."""
    place = ordered(u) >> 9
    return lax.bitcast_convert_type(jnp.uint32(0xFF7FFFFF) - place, jnp.float32)
