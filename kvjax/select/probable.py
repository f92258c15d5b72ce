"""The largest of non-negative scores, with a traced k: probabilities need no order-preserving map, their bits are in order."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float32, Int32, UInt32

from kvjax.kernels.select_top import select_top


def probability_keys(a: Float32[Array, "*x n"], valid: Bool[Array, "*x n"]) -> UInt32[Array, "*x n"]:
    """Unsigned keys in the order of a >= 0; 0 where not valid."""
    bits = lax.bitcast_convert_type(jnp.abs(a.astype(jnp.float32)), jnp.uint32)
    return jnp.where(valid, bits + 1, jnp.uint32(0))


def most_probable(a: Float32[Array, "*x n"], k: Int32[Array, "*x"], valid: Bool[Array, "*x n"]) -> Bool[Array, "*x n"]:
    """topk(a, k) among the valid entries as a mask; equal values by lower index."""
    return select_top(probability_keys(a, valid), k)
