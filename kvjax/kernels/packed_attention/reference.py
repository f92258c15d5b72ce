"""Packed attention as its formula reads: every slot of every region restored, then dense softmax. For tests and small pools."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from kvjax.slot_positions import positions_of


@partial(jax.jit, static_argnames="window")
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window):
    """Definition of `api.packed_attention`."""
    n = -(-pos.shape[0] // k.page) * k.page
    index = jnp.arange(n)
    slots, held = start[..., None] + index, index < length[..., None]
    keys, values = (jnp.where(held[..., None], side.numbers(start, 0, n), 0.0) for side in (k, v))
    z = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), keys, precision="highest") / math.sqrt(q.shape[-1])
    if bias is not None:
        z = z + bias.at[slots].get(mode="clip")[:, :, None, None]
    seen = held[:, :, None]
    if q.shape[3] > 1 or window is not None:
        at, now = positions_of(pos, slots, start)[:, :, None], q_pos[:, None, :, None]
        seen = seen & (at <= now) & (True if window is None else at > now - window)
    z = jnp.where(seen[:, :, None], z, -jnp.inf)
    high = jnp.maximum(z.max(-1, keepdims=True), -1e30)
    weights = jnp.exp(z - high)
    total = weights.sum(-1)
    out = jnp.einsum("bhgtn,bhnd->bhgtd", weights, values, precision="highest") / jnp.maximum(total, 1e-30)[..., None]
    return out.astype(q.dtype), jnp.where(total > 0, high[..., 0] + jnp.log(total), -jnp.inf)
