"""A SwiGLU's first half as two products of `linear`."""

import jax

from kvjax.kernels.linear import linear


def multiply(x, gate, up):
    """See `api.gated_linear`."""
    return jax.nn.silu(linear(x, gate)) * linear(x, up)
