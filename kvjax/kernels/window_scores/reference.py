"""Attention of an observation window as its formula reads: every probability at once. For tests and short texts."""

import math

import jax
import jax.numpy as jnp


@jax.jit
def scores(q, k, pos, valid, length, window=None):
    """Definition of `api.window_scores`."""
    w, d = q.shape[3:]
    k = jnp.where(valid[..., None], k, 0).astype(jnp.float32)
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q.astype(jnp.float32), k, precision="highest") / math.sqrt(d)
    at = length[:, None] - w + jnp.arange(w)
    sees = valid[:, :, None, None, :] & (pos[:, :, None, None, :] <= at[:, None, None, :, None])
    if window is not None:
        sees &= pos[:, :, None, None, :] > at[:, None, None, :, None] - window[:, None, None, None, None]
    high = jnp.maximum(jnp.where(sees, z, -jnp.inf).max(-1, keepdims=True), -1e30)
    weights = jnp.where(sees, jnp.exp(z - high), 0.0)
    return (weights / jnp.maximum(weights.sum(-1, keepdims=True), 1e-30)).sum(3)
