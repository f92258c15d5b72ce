"""Ragged attention in plain XLA: a loop over regions, and in it one over the blocks of slots a region uses.

Lengths are data: a region costs the slots it uses, whatever the other regions hold. Each turn takes the largest block that
fits what is left: a block of thousands of slots keeps both cores busy inside its two products (8064 slots of a 64-wide head
run 2.3 times faster than in blocks of 256), while short regions and tails do not read far past their end. One loop, not one
a core: XLA:CPU lets the bodies of independent loops share temporaries, which makes it run them one after the other.
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
    """Tiling: block sizes from large to small, and the slack a block may read past its region (the pool keeps as much)."""

    blocks: tuple[int, ...] = (4096, 1024, 256)
    slack: int = 256

    def kinds(self, slots: int) -> tuple[tuple[int, int], ...]:
        """(block, fewest slots left for it) from large to small; whole blocks, which need no mask, only of the largest size."""
        blocks = [b for b in self.blocks if b <= slots] or [slots]
        ragged = [(b, max(1, b - self.slack)) for b in blocks]
        return ((blocks[0], blocks[0]), *ragged[:-1], (blocks[-1], 0))


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, pos, start, length, q_pos, *, window: int | None, config: Config = Config()):
    """See `api.ragged_attention`."""
    pool = k, v, pos if q.shape[3] > 1 or window is not None else None
    kinds = config.kinds(k.shape[0])
    sizes = jnp.asarray([block for block, _ in kinds])

    def region(args):
        rows, start, length, q_pos = args
        branches = [partial(_attend_block, pool, window, block, fewest < block, *args) for block, fewest in kinds]

        def turn(state):
            done, carry = state
            kind = sum((length - done < fewest).astype(jnp.int32) for _, fewest in kinds[:-1])
            return done + sizes[kind], lax.switch(kind, branches, done, carry)

        empty = jnp.full(rows.shape[0], LOW), jnp.zeros(rows.shape[0]), jnp.zeros(rows.shape)
        _, carry = lax.while_loop(lambda state: state[0] < length, turn, (jnp.int32(0), empty))
        return _finish(*carry)

    out, lse = lax.map(region, _regions(q, start, length, q_pos))
    return out.reshape(q.shape).astype(q.dtype), lse.reshape(q.shape[:-1])


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def scores(q, k, pos, start, length, q_pos, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.ragged_scores`."""
    b, h, g, t, d = q.shape
    block = config.blocks[-1]
    seen_pos = pos if t > 1 or window is not None else None

    def region(args):
        rows, start, length, q_pos = args

        def fill(index, out):
            held = jnp.arange(block) < length - index * block
            scores = _scores(rows, k, seen_pos, start + index * block, held, q_pos, window, block=block)
            return lax.dynamic_update_slice(out, scores, (0, index * block))

        blocks = -(-jnp.minimum(length, cap) // block)
        width = -(-cap // block) * block
        return lax.fori_loop(0, blocks, fill, jnp.full((rows.shape[0], width), -jnp.inf))[:, :cap]

    return lax.map(region, _regions(q, start, length, q_pos)).reshape(b, h, g, t, cap)


def _regions(q: Float[Array, "b h g t d"], start: Int32[Array, "b h"], length: Int32[Array, "b h"], q_pos):
    """Operands by region: scaled float32 rows [b*h, g*t, d], start, length [b*h] and query positions [b*h, t]."""
    b, h, g, t, d = q.shape
    rows = q.reshape(b * h, g * t, d).astype(jnp.float32) / math.sqrt(d)
    return rows, start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, h, axis=0)


def _attend_block(pool, window, block, ragged, rows, start, length, q_pos, done, carry):
    """Fold the `block` slots after `done` into the running softmax of a region's rows; `ragged`: its end may lie inside."""
    k, v, pos = pool
    high, total, out = carry
    held = jnp.arange(block) < length - done if ragged else None
    scores = _scores(rows, k, pos, start + done, held, q_pos, window, block=block)
    values = lax.dynamic_slice_in_dim(v, start + done, block).astype(jnp.float32)
    if ragged:
        values = jnp.where(held[:, None], values, 0.0)
    new = jnp.maximum(high, scores.max(axis=1))
    weights = jnp.exp(scores - new[:, None])
    decay = jnp.exp(high - new)
    return new, total * decay + weights.sum(axis=1), out * decay[:, None] + lax.dot(weights, values)


def _scores(rows, k, pos, at, held, q_pos, window, *, block: int):
    """Scores [r, block] of the block that starts at slot `at`, -inf where a row does not see the slot."""
    keys = lax.dynamic_slice_in_dim(k, at, block).astype(jnp.float32)
    if rows.shape[0] <= 8 and block <= 1024:
        # a small product spends longer packing its operands than multiplying them
        scores = (rows[:, None, :] * keys[None]).sum(-1)
    else:
        scores = lax.dot_general(rows, keys, (((1,), (1,)), ((), ())))
    seen = True if held is None else held[None, :]
    if pos is not None:
        slot = lax.dynamic_slice_in_dim(pos, at, block)[None, :]
        now = jnp.tile(q_pos, rows.shape[0] // q_pos.shape[0])[:, None]
        seen = seen & (slot <= now)
        if window is not None:
            seen &= slot > now - window
    return scores if seen is True else jnp.where(seen, scores, -jnp.inf)


def _finish(high: Float[Array, " r"], total: Float[Array, " r"], out: Float[Array, "r d"]):
    """(out, lse) from a running softmax; 0 and -inf for rows that saw no slot."""
    seen = total > 0
    out = out / jnp.where(seen, total, 1.0)[:, None]
    return out, jnp.where(seen, high + jnp.log(total), -jnp.inf)
