"""A SwiGLU's first half as the formula reads. For tests."""

import jax
import jax.numpy as jnp

from kvjax.kernels.linear import linear


@jax.jit
def multiply(x, gate, up):
    """Definition of `api.gated_linear`."""
    z, y = (linear(x, weight, dtype=jnp.float32, impl="reference") for weight in (gate, up))
    return (z / (1 + jnp.exp(-z)) * y).astype(x.dtype)
