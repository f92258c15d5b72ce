"""Whether two numbers a token order the tokens alike."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32

from kvjax.order import places


def rank_correlation(x: Float[Array, "*s n"], y: Float[Array, "*s n"], mask: Bool[Array, "*s n"]) -> Float32[Array, "*s"]:
    """Spearman's ρ over the tokens of the mask; equal numbers rank by position. 0 where fewer than two tokens are in it.

    It has no derivative: ranks are constant wherever they are defined.
    """
    x, y = (_centred_ranks(jax.lax.stop_gradient(a), mask) for a in (x, y))
    spread = jnp.sqrt((x * x).sum(-1) * (y * y).sum(-1))
    return (x * y).sum(-1) / jnp.maximum(spread, 1.0)


def _centred_ranks(x: Float[Array, "*s n"], mask: Bool[Array, "*s n"]) -> Float32[Array, "*s n"]:
    """0, 1, ... of the masked tokens from the smallest on, less their mean; 0 elsewhere."""
    order = jnp.argsort(jnp.where(mask, x.astype(jnp.float32), jnp.inf), axis=-1, stable=True)
    ranks = places(order).astype(jnp.float32)
    mean = jnp.where(mask, ranks, 0.0).sum(-1, keepdims=True) / jnp.maximum(mask.sum(-1, keepdims=True), 1)
    return jnp.where(mask, ranks - mean, 0.0)
