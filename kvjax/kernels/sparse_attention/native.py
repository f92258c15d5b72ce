"""Sparse prefill attention on a CPU in C++: 64 queries at a time, over tiles of 64 keys and over columns gathered 64 at a time."""

import jax
import jax.numpy as jnp

from kvjax.kernels import native
from kvjax.kernels.prefill_attention.native import refuses

from .chosen import Chosen, tiles

__all__ = ["attention", "refuses"]


@jax.jit
def attention(q, k, v, chosen: Chosen, offset):
    """See `api.sparse_attention`."""
    whole = tiles(chosen.offsets, chosen.blocks, offset)
    operands = q, k, v, chosen.columns, chosen.offsets, chosen.blocks, whole, jnp.int32(offset)
    out, lse = native.call("sparse_attention", *operands, shapes=[q.shape, q.shape[:-1]])
    return out.astype(q.dtype), lse
