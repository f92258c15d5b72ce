"""Ragged attention in plain XLA: loops over the blocks of slots that regions use, online softmax in float32.

Lengths are data: a region of n slots costs its blocks and no more, whatever the other regions hold. The blocks of all
regions, in order, are cut into `parts` equal runs, each a loop of its own that XLA:CPU runs on a core of its own;
what two parts found in one region is merged by the log-sum-exp of each (split KV).
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float

#: Below every score, and finite: a row that has seen nothing yet gives exp(-inf - LOW) = 0 and not NaN.
LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: slots of a block (at most the pool's slack) and independent loops (cores)."""

    block: int = 256
    parts: int = 2


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    b, h, g, t, d = q.shape
    queries = q.reshape(b * h, g * t, d).astype(jnp.float32) / math.sqrt(d)
    regions = start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, h, axis=0)
    read = partial(_attend_block, (k, v, pos if t > 1 or window is not None else None), window, config.block)
    parts = [_run(read, queries, regions, part, config) for part in range(config.parts)]
    out, lse = _merge(*(jnp.stack(x) for x in zip(*parts, strict=True)))
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


def _run(read, queries: Float[Array, "x r d"], regions, part: int, config: Config):
    """One part's share of the blocks: (high [x r], total [x r], out [x r d]) of every region, unnormalised."""
    start, length, q_pos = regions
    blocks = -(-length // config.block)
    after = jnp.cumsum(blocks)
    begin = after[-1] * part // config.parts
    stop = after[-1] * (part + 1) // config.parts
    low = jnp.clip(begin - after + blocks, 0, blocks)
    high = jnp.clip(stop - after + blocks, 0, blocks)

    def region(args):
        rows, start, length, q_pos, low, high = args
        carry = jnp.full(rows.shape[0], LOW), jnp.zeros(rows.shape[0]), jnp.zeros(rows.shape)
        return lax.fori_loop(low, high, partial(read, rows, start, length, q_pos), carry)

    return lax.map(region, (queries, start, length, q_pos, low, high))


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


def _merge(high: Float[Array, "p x r"], total: Float[Array, "p x r"], out: Float[Array, "p x r d"]):
    """One softmax from the parts': (out [x r d], lse [x r]); 0 and -inf where no part saw a slot."""
    top = high.max(axis=0)
    share = jnp.exp(high - top)
    total = (share * total).sum(axis=0)
    out = (share[..., None] * out).sum(axis=0) / jnp.where(total > 0, total, 1.0)[..., None]
    return out, jnp.where(total > 0, top + jnp.log(total), -jnp.inf)


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def probs(q, k, pos, start, length, q_pos, lse, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.ragged_probs`."""
    b, h, g, t, d = q.shape
    block = config.block
    width = -(-cap // block) * block
    queries = q.reshape(b * h, g * t, d).astype(jnp.float32) / math.sqrt(d)
    seen_pos = pos if t > 1 or window is not None else None

    def region(args):
        rows, lse, start, length, q_pos = args

        def fill(index, out):
            held = jnp.arange(block) < length - index * block
            scores = _scores(rows, k, seen_pos, start + index * block, held, q_pos, window)
            return lax.dynamic_update_slice(out, jnp.exp(scores - lse[:, None]), (0, index * block))

        blocks = -(-jnp.minimum(length, cap) // block)
        return lax.fori_loop(0, blocks, fill, jnp.zeros((rows.shape[0], width)))[:, :cap]

    flat_lse = jnp.maximum(lse.reshape(b * h, g * t), LOW)
    args = queries, flat_lse, start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, h, axis=0)
    return lax.map(region, args).reshape(b, h, g, t, cap)
