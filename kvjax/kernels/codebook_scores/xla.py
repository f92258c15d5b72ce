"""Scores from codes in plain XLA: a loop over regions, over the blocks of slots a region uses, and over the groups of channels.

The innermost turn reads one row of g·t table entries for each slot of a block: the query heads of a group share each look-up's
index, and a group's table (c entries) stays in the first-level cache.
"""

import dataclasses
import math
from functools import partial

import jax
import jax.numpy as jnp
from jax import lax

from kvjax.kernels.ragged_attention.xla import as_slots, sees
from kvjax.slot_positions import in_order


@dataclasses.dataclass(frozen=True)
class Config:
    """Tiling: slots looked up at a time; no more than the pool's slack, which a block may read past its region."""

    block: int = 256


@partial(jax.jit, static_argnames=("cap", "window", "config"))
def scores(q, codes, codebook, pos, start, length, q_pos, *, cap: int, window: int | None, config: Config = Config()):
    """See `api.codebook_scores`."""
    b, h, g, t, d = q.shape
    m, block = codes.shape[1], min(config.block, codes.shape[0])
    width = -(-cap // block) * block
    rows = q.reshape(b * h, g * t, m, d // m).astype(jnp.float32) / math.sqrt(d)

    def positions(first):
        at = first + jnp.arange(block, dtype=jnp.int32)
        return at if in_order(pos) else lax.dynamic_slice_in_dim(pos, first, block)

    def region(args):
        rows, head, start, length, q_pos = args
        q_pos = as_slots(pos, q_pos, start)
        book = jnp.broadcast_to(lax.dynamic_index_in_dim(codebook, head, 0, False), (m, *codebook.shape[2:]))
        table = jnp.einsum("rme,mce->mcr", rows, book.astype(jnp.float32), precision="highest")

        def fill(i, out):
            part = _look_up(table, lax.dynamic_slice_in_dim(codes, start + i * block, block))
            held = (jnp.arange(block) < length - i * block)[None, :]
            if t > 1 or window is not None:
                held = held & sees(positions(start + i * block), q_pos, g * t, window)
            return lax.dynamic_update_slice(out, jnp.where(held, part, -jnp.inf), (0, i * block))

        used = -(-jnp.minimum(length, cap) // block)
        return lax.fori_loop(0, used, fill, jnp.full((g * t, width), -jnp.inf))[:, :cap]

    heads = jnp.tile(jnp.arange(h, dtype=jnp.int32), b)
    operands = (rows, heads, start.reshape(-1), length.reshape(-1), jnp.repeat(q_pos, h, axis=0))
    return lax.map(region, operands).reshape(b, h, g, t, cap)


def _look_up(table, codes):
    """sum_m table[m, codes[:, m]] -> [r, block]."""
    index = codes.T.astype(jnp.int32)
    zeros = jnp.zeros((codes.shape[0], table.shape[2]))

    def add(m, total):
        return total + table[m].at[index[m]].get(mode="clip")

    return lax.fori_loop(0, table.shape[0], add, zeros).T
