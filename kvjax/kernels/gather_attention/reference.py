"""Attention over listed slots as its formula reads. For tests and short lists."""

import math

import jax
import jax.numpy as jnp


@jax.jit
def attention(q, k, v, slots, count, bias=None):
    """Definition of `api.gather_attention`."""
    there = jnp.arange(slots.shape[-1]) < count[..., None]
    keys, values = (jnp.where(there[..., None], x.at[slots].get(mode="clip").astype(jnp.float32), 0.0) for x in (k, v))
    scores = jnp.einsum("bhgtd,bhmd->bhgtm", q.astype(jnp.float32), keys, precision="highest") / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.at[slots].get(mode="clip")[:, :, None, None]
    scores = jnp.where(there[:, :, None, None], scores, -jnp.inf)
    high = jnp.maximum(scores.max(axis=-1), -1e30)
    weights = jnp.exp(scores - high[..., None])
    total = weights.sum(axis=-1)
    lse = jnp.where(total > 0, high + jnp.log(total), -jnp.inf)
    weights = weights / jnp.maximum(total, 1e-30)[..., None]
    return jnp.einsum("bhgtm,bhmd->bhgtd", weights, values, precision="highest").astype(q.dtype), lse
