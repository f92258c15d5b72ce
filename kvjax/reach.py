"""Tokens that a sliding window has left behind: no query to come reads them."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, Int32


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
    """The scores, -inf where no query to come reads a slot: whatever a scorer makes of it, it is kept last."""
    return scores if window is None else jnp.where(in_reach(pos, length, window), scores, -jnp.inf)
