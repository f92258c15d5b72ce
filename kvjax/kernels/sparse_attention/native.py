"""Sparse prefill attention on a CPU in C++: 64 queries at a time, over tiles of 64 keys and over columns gathered 64 at a time."""

import jax
import jax.numpy as jnp

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS

from .chosen import Chosen, tiles


def refuses(q, k, *rest) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del rest
    found = {str(x.dtype) for x in (q, k)}
    if not found <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {', '.join(sorted(found))}"
    return native.missing()


@jax.jit
def attention(q, k, v, chosen: Chosen, offset):
    """See `api.sparse_attention`."""
    whole = tiles(chosen.offsets, chosen.blocks, offset)
    operands = q, k, v, chosen.columns, chosen.offsets, chosen.blocks, whole, jnp.int32(offset)
    out, lse = native.call("sparse_attention", *operands, shapes=[q.shape, q.shape[:-1]])
    return out.astype(q.dtype), lse
