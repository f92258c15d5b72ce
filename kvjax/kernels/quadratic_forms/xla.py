"""Quadratic forms in plain XLA: the matrices of a KV head are one wide product."""

import jax
import jax.numpy as jnp


@jax.jit
def forms(k, a, b):
    """See `api.quadratic_forms`."""
    k, (g, d) = k.astype(jnp.float32), b.shape[2:]
    wide = jnp.moveaxis(a, -1, 2).reshape(*a.shape[:2], d, g * d)
    turned = jnp.einsum("bhnc,bhcx->bhnx", k, wide).reshape(*k.shape[:3], g, d)
    return jnp.moveaxis(((turned + b[:, :, None]) * k[:, :, :, None]).sum(-1), 3, 2)
