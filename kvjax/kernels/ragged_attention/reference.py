"""Ragged attention as its formula reads: every region gathered to the pool's size. For tests and for small pools."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from kvjax.slot_positions import positions_of

from .twice import watching


@partial(jax.jit, static_argnames="window")
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window):
    """Definition of `api.ragged_attention`."""
    slots, held = _region_slots(start, length, k.shape[0])
    scores = _scores(q, k, positions_of(pos, slots, start), slots, held, q_pos, window, bias)
    high = jnp.maximum(scores.max(axis=-1), -1e30)
    total = jnp.exp(scores - high[..., None]).sum(axis=-1)
    lse = jnp.where(total > 0, high + jnp.log(total), -jnp.inf)
    weights = jnp.exp(scores - high[..., None]) / jnp.maximum(total, 1e-30)[..., None]
    values = jnp.where(held[..., None], v[slots].astype(jnp.float32), 0.0)
    return jnp.einsum("bhgtn,bhnd->bhgtd", weights, values, precision="highest").astype(q.dtype), lse


@partial(jax.jit, static_argnames=("cap", "window"))
def scores(q, k, pos, start, length, q_pos, bias=None, *, cap, window):
    """Definition of `api.ragged_scores`."""
    slots, held = _region_slots(start, length, cap)
    return _scores(q, k, positions_of(pos, slots, start), slots, held, q_pos, window, bias)


attention_with_weights = watching(attention, scores)


def _region_slots(start, length, cap: int):
    """Slots [b h cap] of every region and which of them it holds."""
    index = jnp.arange(cap)
    return start[..., None] + index, index < length[..., None]


def _scores(q, k, at, slots, held, q_pos, window, bias):
    """Scaled products [b h g t cap] in float32, -inf where the query does not see the slot."""
    keys = jnp.where(held[..., None], k.at[slots].get(mode="clip").astype(jnp.float32), 0.0)
    scores = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), keys, precision="highest") / math.sqrt(q.shape[-1])
    if bias is not None:
        scores = scores + bias.at[slots].get(mode="clip")[:, :, None, None, :]
    seen = held[:, :, None, :]
    if q.shape[3] > 1 or window is not None:
        at, now = at[:, :, None, :], q_pos[:, None, :, None]
        seen = seen & (at <= now) & (True if window is None else at > now - window)
    return jnp.where(seen[:, :, None], scores, -jnp.inf)
