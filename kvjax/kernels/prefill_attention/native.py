"""Prefill attention on a CPU in C++: 64 queries at a time, each in a lane of the registers, over 64 keys at a time."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS


def refuses(*operands, window: int | None = None) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del window
    k, found = operands[1], {str(x.dtype) for x in operands[:2]}
    if not found <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {', '.join(sorted(found))}"
    v = operands[2]  # or what sums of columns take there, which is of another shape
    if v.shape == k.shape and v.dtype != k.dtype:
        return f"takes keys and values alike; got {k.dtype} and {v.dtype}"
    return native.missing()


@partial(jax.jit, static_argnames="window")
def attention(q, k, v, offset, *, window: int | None):
    """See `api.prefill_attention`."""
    out, lse = native.call(
        "prefill_attention", q, k, v, jnp.int32(offset), shapes=[q.shape, q.shape[:-1]], window=np.int64(window or 0)
    )  # fmt: skip
    return out.astype(q.dtype), lse


@partial(jax.jit, static_argnames="window")
def column_sums(q, k, lse, offset, length, *, window: int | None):
    """See `api.column_sums`."""
    return native.call(
        "column_sums", q, k, lse, jnp.int32(offset), jnp.asarray(length, jnp.int32), shapes=(*q.shape[:3], k.shape[2]),
        window=np.int64(window or 0),
    )  # fmt: skip


@partial(jax.jit, static_argnames="window")
def attention_and_column_sums(q, k, v, offset, length, *, window: int | None):
    """See `api.attention_and_column_sums`."""
    out, lse, sums = native.call(
        "attention_and_column_sums", q, k, v, jnp.int32(offset), jnp.asarray(length, jnp.int32),
        shapes=[q.shape, q.shape[:-1], (*q.shape[:3], k.shape[2])], window=np.int64(window or 0),
    )  # fmt: skip
    return out.astype(q.dtype), lse, sums
