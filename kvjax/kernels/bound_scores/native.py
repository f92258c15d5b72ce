"""Bounds of products on a CPU in C++: those of `xla`, each product as the scores of a pool whose regions are heads' pages."""

import math

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.kernels import native
from kvjax.kernels.ragged_attention.native import KINDS, biases


def refuses(q, low, high, full) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del full
    if q.shape[-1] % 16:
        return f"takes head dimensions that are multiples of 16, got {q.shape[-1]}"
    found = {str(x.dtype) for x in (q, low, high)}
    if not found <= set(KINDS):
        return f"takes {', '.join(KINDS)}; got {', '.join(sorted(found))}"
    return native.missing()


@jax.jit
def bounds(q, low, high, full):
    """See `api.bound_scores`."""
    b, h, p, d = low.shape
    start = p * jnp.arange(b * h, dtype=jnp.int32).reshape(b, h)
    last = jnp.full((b, 1), p, jnp.int32)
    in_order = jnp.zeros((b * h * p, 0), jnp.int32)

    def product(x, bound):
        operands = x[:, :, :, None], bound.reshape(b * h * p, d), in_order, start, full, last, biases(None)
        return native.call("ragged_scores", *operands, shapes=(*x.shape[:3], 1, p), window=np.int64(0))[:, :, :, 0]

    return math.sqrt(d) * (product(jnp.maximum(q, 0), high) + product(jnp.minimum(q, 0), low))
