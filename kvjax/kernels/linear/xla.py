"""Rows times a weight matrix as XLA multiplies them."""

import jax.numpy as jnp
from jax import lax


def multiply(x, weight, *, dtype):
    """See `api.linear`."""
    single = x.shape[0] == 1 and weight.dtype.itemsize == 2
    if single:
        # for one row XLA on CPU first copies the whole 16-bit weight to float32 (97 ms against 10): give it two
        x = jnp.pad(x, ((0, 1), (0, 0)))
    y = lax.dot_general(x, weight, (((1,), (1,)), ((), ())), preferred_element_type=dtype)
    return y[:1] if single else y
