"""Ragged attention in plain XLA: regions cut into blocks of slots, and a loop over a few blocks at a time, whoever they belong to.

Lengths are data: a region costs the slots it uses, whatever the other regions hold. XLA on CPU copies a slice before it multiplies
it and splits an operation over the cores only if it is large; blocks of several short regions, copied and multiplied together,
make it large whatever the skew. One loop, not one a core: XLA:CPU lets the bodies of independent loops share temporaries, which
makes it run them one after the other.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, Integer

from kvjax.slot_positions import in_order
from kvjax.types import BLOCK, SlotPositions

from .twice import watching

#: Below every score, and finite: a row that has seen nothing yet gives exp(-inf - LOW) = 0 and not NaN.
LOW = -1e30


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: slots of a block, blocks a turn, and slots of a block where whole rows of scores are asked for."""

    block: int = 512
    blocks: int = 8
    scores: int = BLOCK


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, bias=None, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    rows, start, length, q_pos = _regions(q, start, length, q_pos)
    q_pos = as_slots(pos, q_pos, start)
    block, many = min(config.block, k.shape[0]), config.blocks
    items = -(-length // block)
    ends = jnp.cumsum(items, dtype=jnp.int32)
    pools = k, v, pos if q.shape[3] > 1 or window is not None else None, bias

    def turn(i, carry):
        item = i * many + jnp.arange(many, dtype=jnp.int32)
        region = jnp.minimum((ends <= item[:, None]).sum(1, dtype=jnp.int32), length.size - 1)
        done = (item - (ends - items)[region]) * block
        held = jnp.where(item < ends[-1], length[region] - done, 0)
        parts = _attend_blocks(pools, rows[region], start[region] + done, held, q_pos[region], window=window, block=block)
        return _fold(carry, region, *parts)

    empty = jnp.full(rows.shape[:2], LOW), jnp.zeros(rows.shape[:2]), jnp.zeros(rows.shape)
    out, lse = _finish(*lax.fori_loop(0, -(-ends[-1] // many), turn, empty))
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def scores(q, k, pos, start, length, q_pos, bias=None, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.ragged_scores`."""
    b, h, g, t, d = q.shape
    block = min(config.scores, k.shape[0])
    pools = k, pos if t > 1 or window is not None else None, bias

    def region(args):
        rows, start, length, q_pos = args
        q_pos = as_slots(pos, q_pos, start)

        def fill(index, out):
            held = jnp.arange(block) < length - index * block
            scores = _scores(rows, pools, start + index * block, held, q_pos, window, block=block)
            return lax.dynamic_update_slice(out, scores, (0, index * block))

        blocks = -(-jnp.minimum(length, cap) // block)
        width = -(-cap // block) * block
        return lax.fori_loop(0, blocks, fill, jnp.full((rows.shape[0], width), -jnp.inf))[:, :cap]

    return lax.map(region, _regions(q, start, length, q_pos)).reshape(b, h, g, t, cap)


attention_with_weights = watching(attention, scores)


def _regions(q: Float[Array, "b h g t d"], start: Int32[Array, "b h"], length: Int32[Array, "b h"], q_pos):
    """Operands by region: scaled float32 rows [b*h, g*t, d], start, length [b*h] and query positions [b*h, t]."""
    return rows_of(q), start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, q.shape[1], axis=0)


def rows_of(q: Float[Array, "b h g t d"]) -> Float32[Array, "regions r d"]:
    """The query rows of each region [b*h, g*t, d], scaled by 1 / sqrt(d)."""
    b, h, g, t, d = q.shape
    return q.reshape(b * h, g * t, d).astype(jnp.float32) / math.sqrt(d)


def _attend_blocks(pools, rows, at, held, q_pos, *, window, block: int):
    """Softmax of w blocks by themselves, `held` slots from `at` on: greatest scores [w r], sums [w r], weighted values [w r d]."""
    last = pools[0].shape[0] - block

    def sliced(x):
        return jax.vmap(lambda a: lax.dynamic_slice_in_dim(x, a, block))(jnp.minimum(at, last))

    slot = jnp.minimum(at, last)[:, None] + jnp.arange(block, dtype=jnp.int32)  # a slice that would run off the end moves
    there = (slot >= at[:, None]) & (slot < (at + held)[:, None])
    keys, values = (sliced(x).astype(jnp.float32) for x in pools[:2])
    scores = lax.dot_general(rows, keys, (((2,), (2,)), ((0,), (0,))))
    if pools[3] is not None:
        scores = scores + sliced(pools[3])[:, None]
    seen = there[:, None]
    if pools[2] is not None:
        pos = slot if in_order(pools[2]) else sliced(pools[2])
        seen = seen & sees(pos, q_pos, rows.shape[1], window)
    scores = jnp.where(seen, scores, -jnp.inf)
    high = jnp.maximum(scores.max(-1), LOW)
    weights = jnp.exp(scores - high[..., None])
    values = jnp.where(there[..., None], values, 0.0)
    return high, weights.sum(-1), lax.dot_general(weights, values, (((2,), (1,)), ((0,), (0,))))


def _fold(carry, region, high, total, out):
    """The w blocks of a turn added to the running softmax of their regions.

    Block after block: a region's sums do not depend on where its blocks lie among others, a row of a batch is what it is alone.
    """

    def add(i, carry):
        before = [lax.dynamic_index_in_dim(x, region[i], keepdims=False) for x in carry]
        new = jnp.maximum(before[0], high[i])
        decay, share = jnp.exp(before[0] - new), jnp.exp(high[i] - new)
        after = new, before[1] * decay + total[i] * share, before[2] * decay[:, None] + out[i] * share[:, None]
        return tuple(lax.dynamic_update_index_in_dim(x, y, region[i], 0) for x, y in zip(carry, after, strict=True))

    return lax.fori_loop(0, region.size, add, carry)


def _scores(rows, pools, at, held, q_pos, window, *, block: int):
    """Scores [r, block] of the block that starts at slot `at`, -inf where a row does not see the slot."""
    k, pos, bias = pools

    def sliced(x):
        return lax.dynamic_slice_in_dim(x, at, block)

    keys = sliced(k).astype(jnp.float32)
    if rows.shape[0] <= 8:  # a small product spends longer packing its operands than multiplying them
        scores = (rows[:, None, :] * keys[None]).sum(-1)
    else:
        scores = lax.dot_general(rows, keys, (((1,), (1,)), ((), ())))
    if bias is not None:
        scores = scores + sliced(bias)
    seen = held[None, :]
    if pos is not None:
        pos = at + jnp.arange(block, dtype=jnp.int32) if in_order(pos) else sliced(pos)
        seen = seen & sees(pos, q_pos, rows.shape[0], window)
    return jnp.where(seen, scores, -jnp.inf)


def as_slots(pos: SlotPositions, q_pos: Int32[Array, "*r t"], start: Int32[Array, "*r"]) -> Int32[Array, "*r t"]:
    """Positions of queries; counted in slots of the pool where those of slots are, so that a slot's is its number."""
    return q_pos + start[..., None] if in_order(pos) else q_pos


def sees(pos: Integer[Array, "... n"], q_pos: Int32[Array, "... t"], r: int, window: int | None) -> Bool[Array, "... r n"]:
    """Which slots each of r rows, the t queries of every head in turn, may look at."""
    now = jnp.concatenate([q_pos] * (r // q_pos.shape[-1]), -1)[..., None]
    pos = pos[..., None, :]
    return pos <= now if window is None else (pos <= now) & (pos > now - window)


def _finish(high: Float[Array, "regions r"], total: Float[Array, "regions r"], out: Float[Array, "regions r d"]):
    """(out, lse) from a running softmax; 0 and -inf for rows that saw no slot."""
    seen = total > 0
    out = out / jnp.where(seen, total, 1.0)[..., None]
    return out, jnp.where(seen, high + jnp.log(total), -jnp.inf)
