"""Mass selection as its formula reads: sort, add up, cut. For tests and short lists."""

import jax
import jax.numpy as jnp

from .xla import SLOP


@jax.jit
def select(scores, tau):
    """Definition of `api.select_top_p`."""
    lse = jax.nn.logsumexp(scores, axis=-1)
    p = jnp.where(jnp.isneginf(lse)[..., None], 0.0, jnp.exp(scores - lse[..., None]))
    order = jnp.argsort(-p, -1, stable=True)
    before = jnp.cumsum(jnp.take_along_axis(p, order, -1), -1) - jnp.take_along_axis(p, order, -1)
    taken = jnp.put_along_axis(jnp.zeros(p.shape, bool), order, before < tau - SLOP, -1, inplace=False)
    return jnp.where(taken, p, 0.0), lse
