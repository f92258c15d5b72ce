"""Mass selection in plain XLA: thirty halvings of the threshold's bits instead of a sort."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32

from kvjax.kernels.ragged_attention import log_denominator, probabilities
from kvjax.types import Number

#: Rounding allowed for in a cumulative sum of float32 probabilities.
SLOP = 1e-6


def top_p_mask(a: Float32[Array, "*rows n"], tau: Number) -> Bool[Array, "*rows n"]:
    """Mask of the k* largest entries, k* = min {k : Σ of the k largest >= tau - 1e-6}; equal entries by lower index.

    Everything where the mass never reaches tau.
    """
    bits = lax.bitcast_convert_type(a, jnp.int32)  # of non-negative floats: the same order
    goal = tau - SLOP

    def halve(i, threshold):
        trial = threshold | (jnp.int32(1) << (30 - i))
        enough = jnp.where(bits >= trial[..., None], a, 0.0).sum(-1) >= goal
        return jnp.where(enough, trial, threshold)

    threshold = lax.fori_loop(0, 31, halve, jnp.zeros(a.shape[:-1], jnp.int32))[..., None]
    above, equal = bits > threshold, (bits == threshold) & (a > 0)
    lacking = goal - jnp.where(above, a, 0.0).sum(-1, keepdims=True)
    value = lax.bitcast_convert_type(threshold, jnp.float32)
    wanted = jnp.ceil(lacking / jnp.maximum(value, jnp.finfo(jnp.float32).tiny))
    return above | (equal & (jnp.cumsum(equal, -1) <= wanted))


@jax.jit
def select(scores, tau):
    """See `api.select_top_p`."""
    lse = log_denominator(scores)
    p = probabilities(scores, lse)
    return jnp.where(top_p_mask(p, tau), p, 0.0), lse
