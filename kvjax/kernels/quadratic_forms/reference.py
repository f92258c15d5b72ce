"""Quadratic forms as their formula reads."""

import jax
import jax.numpy as jnp


@jax.jit
def forms(k, a, b):
    """Definition of `api.quadratic_forms`."""
    k = k.astype(jnp.float32)
    turned = jnp.einsum("bhgdc,bhnc->bhgnd", a, k, precision="highest") + b[:, :, :, None]
    return (turned * k[:, :, None]).sum(-1)
