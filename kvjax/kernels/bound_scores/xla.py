"""Bounds of products as two products: the larger of q M and q m is the one with M where q > 0, and the one with m elsewhere."""

import jax
import jax.numpy as jnp


@jax.jit
def bounds(q, low, high, full):
    """See `api.bound_scores`."""

    def product(x, bound):
        return jnp.einsum("bhgd,bhpd->bhgp", x, bound, preferred_element_type=jnp.float32)

    real = jnp.arange(low.shape[2]) < full[..., None, None]
    return jnp.where(real, product(jnp.maximum(q, 0), high) + product(jnp.minimum(q, 0), low), -jnp.inf)
