"""Bounds of products on a CPU in C++: those of `xla`, each product as the scores of a pool whose regions are heads' pages."""

import math

import jax
import jax.numpy as jnp

from kvjax.kernels.ragged_attention import native as ragged
from kvjax.slot_positions import unnumbered


def refuses(q, low, high, full) -> str | None:
    """Why these operands are not for this implementation, or None."""
    del full
    return ragged.refuses(q[:, :, :, None], low, high)


@jax.jit
def bounds(q, low, high, full):
    """See `api.bound_scores`."""
    b, h, p, d = low.shape
    start, last = p * jnp.arange(b * h, dtype=jnp.int32).reshape(b, h), jnp.full((b, 1), p, jnp.int32)
    pos = unnumbered(b * h * p, jnp.int32)

    def product(x, bound):
        pool = bound.reshape(b * h * p, d)
        return ragged.scores(x[:, :, :, None], pool, pos, start, full, last, cap=p, window=None)[:, :, :, 0]

    return math.sqrt(d) * (product(jnp.maximum(q, 0), high) + product(jnp.minimum(q, 0), low))
