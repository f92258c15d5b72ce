"""Attention over listed slots on a CPU in C++: ragged attention's pieces, their slots read from the lists."""

import jax

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import biases, refuses

__all__ = ["attention", "refuses"]


@jax.jit
def attention(q, k, v, slots, count, bias=None):
    """See `api.gather_attention`."""
    out, lse = native.call("gather_attention", q, k, v, slots, count, biases(bias), shapes=[q.shape, q.shape[:-1]])
    return out.astype(q.dtype), lse
