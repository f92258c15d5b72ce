"""Weighted values in plain XLA: a loop over regions, and in it one over the blocks of slots a region uses."""

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, Int32

from kvjax.types import BLOCK


def last_used(weights: Float32[Array, "b h g t n"]) -> Int32[Array, "b h"]:
    """One more than the last slot of nonzero weight, 0 if there is none."""
    n = jnp.arange(1, weights.shape[-1] + 1, dtype=jnp.int32)
    return jnp.where((weights > 0).any((2, 3)), n, 0).max(-1)


@jax.jit
def weighted_sum(v, start, weights):
    """See `api.weighted_values`."""
    b, h, g, t, n = weights.shape
    rows = jnp.pad(weights.reshape(b * h, g * t, n), ((0, 0), (0, 0), (0, BLOCK)))
    used = last_used(weights).reshape(-1)

    def region(args):
        rows, start, used = args

        def block(i, out):
            at = i * BLOCK
            part = lax.dynamic_slice_in_dim(v, start + at, BLOCK).astype(jnp.float32)
            part = jnp.where((jnp.arange(BLOCK) < used - at)[:, None], part, 0.0)
            return out + lax.dot(lax.dynamic_slice_in_dim(rows, at, BLOCK, axis=1), part)

        return lax.fori_loop(0, -(-used // BLOCK), block, jnp.zeros((g * t, v.shape[1])))

    return lax.map(region, (rows, start.reshape(-1), used)).reshape(b, h, g, t, -1)
