"""Sparse prefill attention as its definition reads: the whole mask, every score at once. For tests and for small prompts."""

import jax
import jax.numpy as jnp

from kvjax.kernels.prefill_attention.reference import mixed

from .chosen import BLOCK, Chosen


@jax.jit
def attention(q, k, v, chosen: Chosen, offset):
    """Definition of `api.sparse_attention`."""
    t, n = q.shape[3], k.shape[2]
    row, col = offset + jnp.arange(t)[:, None], jnp.arange(n)
    by_column = (chosen.columns[..., None] == col).any(-2)[..., None, :]
    by_offset = jnp.take(chosen.offsets, jnp.maximum(row - col, 0), axis=-1, mode="clip")
    by_block = chosen.blocks[..., (jnp.arange(t) // BLOCK)[:, None], col // BLOCK]
    scores = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), k.astype(jnp.float32), precision="highest")
    scores = jnp.where((by_column | by_offset | by_block) & (col <= row), scores / q.shape[-1] ** 0.5, -jnp.inf)
    high = scores.max(axis=-1)
    weights = jnp.exp(scores - high[..., None])
    total = weights.sum(axis=-1)
    return (mixed(weights, v.astype(jnp.float32)) / total[..., None]).astype(q.dtype), high + jnp.log(total)
