"""Attention over listed slots on a GPU by Triton: the kernels of ragged attention, their slots read from the lists."""

from functools import partial

import jax
import jax.numpy as jnp

from kvjax.kernels.ragged_attention.triton import Config, refuses, split_attention

__all__ = ["attention", "refuses"]


@partial(jax.jit, static_argnames=("config",))
def attention(q, k, v, slots, count, bias=None, *, config: Config = Config()):
    """See `api.gather_attention`."""
    now, pos = jnp.zeros(q.shape[:1], jnp.int32), slots.reshape(-1)  # read only where there is a window
    m = slots.shape[-1]
    return split_attention(q, k, v, pos, slots, jnp.clip(count, 0, m), now, bias, window=None, listed=m, config=config)
