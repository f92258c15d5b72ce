"""Keys in the order of floats."""

import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float32, UInt32

#: The key of NaN: above 0, which is no slot, and below every number.
NAN = 1


def ordered(x: Float32[Array, "*x n"]) -> UInt32[Array, "*x n"]:
    """Unsigned keys in the order of the numbers, NaN lowest; -0.0 and 0.0 tie; none is 0."""
    x = jnp.where(x == 0, 0.0, x)
    bits = lax.bitcast_convert_type(x, jnp.uint32)
    order = jnp.where(bits >> 31 == 1, ~bits, bits | jnp.uint32(0x80000000))
    return jnp.where(jnp.isnan(x), jnp.uint32(NAN), jnp.maximum(order, NAN + 1))
