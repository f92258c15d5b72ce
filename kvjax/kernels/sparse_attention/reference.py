"""Sparse prefill attention as its definition reads: the whole mask, every score at once. For tests and for small prompts."""

import jax
import jax.numpy as jnp

from kvjax.kernels.prefill_attention.reference import attended, products

from .chosen import BLOCK, Chosen


@jax.jit
def attention(q, k, v, chosen: Chosen, offset):
    """Definition of `api.sparse_attention`."""
    t, n = q.shape[3], k.shape[2]
    row, col = offset + jnp.arange(t)[:, None], jnp.arange(n)
    by_column = (chosen.columns[..., None] == col).any(-2)[..., None, :]
    by_offset = jnp.take(chosen.offsets, jnp.maximum(row - col, 0), axis=-1, mode="clip")
    by_block = chosen.blocks[..., (jnp.arange(t) // BLOCK)[:, None], col // BLOCK]
    seen = (by_column | by_offset | by_block) & (col <= row)
    out, lse = attended(jnp.where(seen, products(q, k), -jnp.inf), v)
    return out.astype(q.dtype), lse
