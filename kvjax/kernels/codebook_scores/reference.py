"""Scores from codes as the formula reads: every key decoded, every region gathered. For tests and small pools."""

import math
from functools import partial

import jax
import jax.numpy as jnp

from kvjax.slot_positions import positions_of


@partial(jax.jit, static_argnames=("cap", "window"))
def scores(q, codes, codebook, pos, start, length, q_pos, *, cap, window):
    """Definition of `api.codebook_scores`."""
    index = jnp.arange(cap)
    slots, held = start[..., None] + index, index < length[..., None]
    picked = codes.at[slots].get(mode="clip").astype(jnp.int32)
    table = jnp.broadcast_to(codebook, (codebook.shape[0], codes.shape[1], *codebook.shape[2:])).astype(jnp.float32)
    h, m = jnp.arange(q.shape[1])[None, :, None, None], jnp.arange(codes.shape[1])
    keys = table[h, m, jnp.minimum(picked, codebook.shape[2] - 1)].reshape(*slots.shape, q.shape[-1])
    products = jnp.einsum("bhgtd,bhnd->bhgtn", q.astype(jnp.float32), keys, precision="highest") / math.sqrt(q.shape[-1])
    seen = held[:, :, None, :]
    if q.shape[3] > 1 or window is not None:
        at, now = positions_of(pos, slots, start)[:, :, None, :], q_pos[:, None, :, None]
        seen = seen & (at <= now) & (True if window is None else at > now - window)
    return jnp.where(seen[:, :, None], products, -jnp.inf)
