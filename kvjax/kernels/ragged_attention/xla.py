"""Ragged attention in plain XLA: a loop over regions, and in it one over the blocks of slots a region uses.

Lengths are data: a region of n slots costs ceil(n / block) blocks, whatever the other regions hold. One loop, not one
a core: XLA:CPU lets the bodies of independent loops share temporaries, which makes it run them one after the other, so
two half loops gain nothing.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32

#: Below every score, and finite: a row that has seen nothing yet gives exp(-inf - LOW) = 0 and not NaN.
LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: slots of a block, at most the slack at the pool's end. 128 to 512 differ by less than 10%."""

    block: int = 256


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    seen_pos = pos if q.shape[3] > 1 or window is not None else None
    fold = partial(_attend_block, (k, v, seen_pos), window, config.block)

    def region(args):
        rows, start, length, q_pos = args
        carry = jnp.full(rows.shape[0], LOW), jnp.zeros(rows.shape[0]), jnp.zeros(rows.shape)
        blocks = -(-length // config.block)
        return _finish(*lax.fori_loop(0, blocks, partial(fold, rows, start, length, q_pos), carry))

    out, lse = lax.map(region, _regions(q, start, length, q_pos))
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def probs(q, k, pos, start, length, q_pos, lse, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.ragged_probs`."""
    b, h, g, t, d = q.shape
    block = config.block
    seen_pos = pos if t > 1 or window is not None else None

    def region(args):
        (rows, start, length, q_pos), lse = args

        def fill(index, out):
            held = jnp.arange(block) < length - index * block
            scores = _scores(rows, k, seen_pos, start + index * block, held, q_pos, window)
            return lax.dynamic_update_slice(out, jnp.exp(scores - lse[:, None]), (0, index * block))

        blocks = -(-jnp.minimum(length, cap) // block)
        width = -(-cap // block) * block
        return lax.fori_loop(0, blocks, fill, jnp.zeros((rows.shape[0], width)))[:, :cap]

    flat_lse = jnp.maximum(lse.reshape(b * h, g * t), LOW)
    return lax.map(region, (_regions(q, start, length, q_pos), flat_lse)).reshape(b, h, g, t, cap)


def _regions(q: Float[Array, "b h g t d"], start: Int32[Array, "b h"], length: Int32[Array, "b h"], q_pos):
    """Operands by region: scaled float32 rows [b*h, g*t, d], start, length [b*h] and query positions [b*h, t]."""
    b, h, g, t, d = q.shape
    rows = q.reshape(b * h, g * t, d).astype(jnp.float32) / math.sqrt(d)
    return rows, start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, h, axis=0)


def _attend_block(pool, window, block, rows, start, length, q_pos, index, carry):
    """Fold one block of a region's slots into the running softmax of its rows."""
    k, v, pos = pool
    high, total, out = carry
    at = start + index * block
    held = jnp.arange(block) < length - index * block
    scores = _scores(rows, k, pos, at, held, q_pos, window)
    values = jnp.where(held[:, None], lax.dynamic_slice_in_dim(v, at, block).astype(jnp.float32), 0.0)
    new = jnp.maximum(high, scores.max(axis=1))
    weights = jnp.exp(scores - new[:, None])
    decay = jnp.exp(high - new)
    return new, total * decay + weights.sum(axis=1), out * decay[:, None] + lax.dot(weights, values)


def _scores(rows, k, pos, at, held, q_pos, window):
    """Scores [r, block] of the block that starts at slot `at`, -inf where a row does not see the slot."""
    block = held.shape[0]
    keys = lax.dynamic_slice_in_dim(k, at, block).astype(jnp.float32)
    scores = lax.dot_general(rows, keys, (((1,), (1,)), ((), ())))
    if pos is None:
        return jnp.where(held[None, :], scores, -jnp.inf)
    slot = lax.dynamic_slice_in_dim(pos, at, block)[None, :]
    now = jnp.tile(q_pos, rows.shape[0] // q_pos.shape[0])[:, None]
    seen = held[None, :] & (slot <= now)
    if window is not None:
        seen &= slot > now - window
    return jnp.where(seen, scores, -jnp.inf)


def _finish(high: Float[Array, " r"], total: Float[Array, " r"], out: Float[Array, "r d"]):
    """(out, lse) from a running softmax; 0 and -inf for rows that saw no slot."""
    seen = total > 0
    out = out / jnp.where(seen, total, 1.0)[:, None]
    return out, jnp.where(seen, high + jnp.log(total), -jnp.inf)
