"""Prefill attention as its formula reads: every score at once. For tests and for small prompts."""

import math
from functools import partial

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float


@partial(jax.jit, static_argnames="window")
def attention(q: Float[Array, "b h g t d"], k: Float[Array, "b h n d"], v: Float[Array, "b h n d"], offset, *, window):
    """Definition of `api.prefill_attention`."""
    scores = _scores(q, k, offset, window)
    high = scores.max(axis=-1)
    lse = high + jnp.log(jnp.exp(scores - high[..., None]).sum(axis=-1))
    weights = jnp.exp(scores - lse[..., None])
    out = jnp.einsum("bhgtn,bhnd->bhgtd", weights, v.astype(jnp.float32), precision="highest")
    return out.astype(q.dtype), lse


@partial(jax.jit, static_argnames="window")
def column_sums(q, k, lse, offset, length, *, window) -> Float[Array, "b h g n"]:
    """Definition of `api.column_sums`."""
    weights = jnp.exp(_scores(q, k, offset, window) - lse[..., None])
    counted = offset + jnp.arange(q.shape[3])[None, :] < length[:, None]
    weights = jnp.where(counted[:, None, None, :, None], weights, 0.0)
    return weights.sum(axis=3)


def _scores(q, k, offset, window) -> Float[Array, "b h g t n"]:
    """Scaled products in float32, -inf where the query does not see the key."""
    scores = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), k.astype(jnp.float32), precision="highest")
    row = offset + jnp.arange(q.shape[3])[:, None]
    col = jnp.arange(k.shape[2])[None, :]
    seen = col <= row if window is None else (col <= row) & (col > row - window)
    return jnp.where(seen, scores / math.sqrt(q.shape[-1]), -jnp.inf)
