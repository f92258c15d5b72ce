"""Ragged attention on a CPU in C++ (`kvjax/kernels/native`): every key and value is read from memory once.

Regions are cut into pieces of 256 slots, shared out over XLA's threads, and put together in order: a region's result does not
depend on the others, nor on the number of threads.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.kernels import native

#: Query rows of a region up to which this is at least as fast as XLA's matrix products.
MOST_ROWS = 256
KINDS = ("float32", "bfloat16", "float16")


def refuses(q, k, *rest, **static) -> str | None:
    """Why these operands are not for this implementation, or None."""
    g, t, d = q.shape[2:]
    if g * t > MOST_ROWS:
        return f"takes up to {MOST_ROWS} query rows a KV head, got {g} heads of {t} queries"
    if d % 16:
        return f"takes head dimensions that are multiples of 16, got {d}"
    floats = [str(x.dtype) for x in (k, *rest[:1]) if jnp.issubdtype(x.dtype, jnp.floating)]
    if str(q.dtype) not in KINDS or floats[0] not in KINDS or len(set(floats)) > 1:
        return f"takes {', '.join(KINDS)}, keys and values alike; got q {q.dtype} and pools {', '.join(floats)}"
    if any(str(x.dtype) not in ("uint16", "int32") for x in rest if x is not None and jnp.issubdtype(x.dtype, jnp.integer)):
        return "takes positions as uint16 or int32"
    return native.missing()


def biases(bias):
    """What the custom calls take where there are none: an array of length 0."""
    return jnp.zeros(0) if bias is None else bias


@partial(jax.jit, static_argnames="window")
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window: int | None):
    """See `api.ragged_attention`."""
    shapes, window = [q.shape, q.shape[:-1]], np.int64(window or 0)
    operands = q, k, v, pos, start, length, q_pos, biases(bias)
    out, lse = native.call("ragged_attention", *operands, shapes=shapes, window=window)
    return out.astype(q.dtype), lse


@partial(jax.jit, static_argnames=("cap", "window"))
def scores(q, k, pos, start, length, q_pos, bias=None, *, cap: int, window: int | None):
    """See `api.ragged_scores`."""
    shape, window = (*q.shape[:-1], cap), np.int64(window or 0)
    return native.call("ragged_scores", q, k, pos, start, length, q_pos, biases(bias), shapes=shape, window=window)


@partial(jax.jit, static_argnames=("heads", "cap", "window"))
def attention_with_weights(
    q, k, v, pos, start, length, q_pos, upto, bias=None, *, heads: tuple[int, ...], cap: int, window: int | None
):
    """See `api.attention_with_weights`."""
    shapes = [q.shape, q.shape[:-1], (q.shape[0], len(heads), *q.shape[2:4], cap)]
    operands = q, k, v, pos, start, length, q_pos, biases(bias), jnp.array(heads, jnp.int32), upto
    out, lse, probabilities = native.call("attention_with_weights", *operands, shapes=shapes, window=np.int64(window or 0))
    return out.astype(q.dtype), lse, probabilities
