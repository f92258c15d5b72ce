"""Sparse prefill attention in plain XLA: loops over the tiles of 64 by 64 with something chosen.

A query block takes the key blocks that a chosen diagonal or block touches, one after the other, and then the chosen columns,
gathered 64 at a time; softmax and sums go on from tile to tile.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.prefill_attention.xla import LOW

from .chosen import BLOCK, Chosen, tiles


class Head(NamedTuple):
    """One query head: padded queries, keys and values, its index, and the list of its columns, n where there are fewer."""

    q: Float[Array, "i r d"]
    k: Float[Array, "n d"]
    v: Float[Array, "n d"]
    columns: Int32[Array, " m"]
    offsets: Bool[Array, " n"]
    blocks: Bool[Array, "i j"]


class Sums(NamedTuple):
    """What goes on from tile to tile: running maximum, denominator and weighted sum of 64 queries."""

    high: Float32[Array, " r"]
    total: Float32[Array, " r"]
    out: Float32[Array, "r d"]


@jax.jit
def attention(q, k, v, chosen: Chosen, offset):
    """See `api.sparse_attention`."""
    b, h, g, t, d = q.shape
    n = k.shape[2]
    queries = jnp.pad(q, ((0, 0),) * 3 + ((0, -t % BLOCK), (0, 0))).reshape(b * h * g, -1, BLOCK, d)
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, -n % BLOCK), (0, 0))).reshape(b * h, -1, d) for x in (k, v))

    def flat(x):
        return x.reshape(b * h * g, *x.shape[3:])

    offsets = jnp.pad(flat(chosen.offsets), ((0, 0), (0, -n % BLOCK)))
    columns = jnp.pad(flat(chosen.columns), ((0, 0), (0, -chosen.columns.shape[3] % BLOCK)), constant_values=k.shape[1])
    index_of = columns, offsets, flat(chosen.blocks)

    def head(r, own):
        return _head(Head(own[0], k[r // g], v[r // g], *own[1:]), offset)

    out, lse = lax.map(lambda x: head(x[0], x[1:]), (jnp.arange(b * h * g), queries, *index_of))
    out, lse = out.reshape(b, h, g, -1, d), lse.reshape(b, h, g, -1)
    return out[:, :, :, :t].astype(q.dtype), lse[..., :t]


def _head(head: Head, offset: Int32[Array, ""]) -> tuple[Float32[Array, "t d"], Float32[Array, " t"]]:
    """All query blocks of one head."""
    whole = tiles(head.offsets, head.blocks, offset)
    out, lse = lax.map(lambda x: _query_block(head, *x, offset), (jnp.arange(len(whole)), whole))
    return out.reshape(-1, out.shape[-1]), lse.reshape(-1)


def _query_block(head: Head, i: Int32[Array, ""], whole: Bool[Array, " j"], offset: Int32[Array, ""]):
    """One block of queries over its tiles and its columns."""
    q, d = head.q[i].astype(jnp.float32) / math.sqrt(head.q.shape[-1]), head.q.shape[-1]
    row = offset + i * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)[:, None]
    order = jnp.nonzero(whole, size=len(whole), fill_value=0)[0].astype(jnp.int32)

    def tile(x, sums: Sums) -> Sums:
        j = order[x]
        at = j * BLOCK + jnp.arange(BLOCK, dtype=jnp.int32)
        k, v = (lax.dynamic_slice_in_dim(y, j * BLOCK, BLOCK) for y in (head.k, head.v))
        return _fold(sums, q, k, v, (_near(head, row, at) | head.blocks[i, j]) & (at <= row))

    def columns(x, sums: Sums) -> Sums:
        at = lax.dynamic_slice_in_dim(head.columns, x * BLOCK, BLOCK)
        k, v = (y.at[at].get(mode="clip") for y in (head.k, head.v))
        other = ~_near(head, row, at) & ~head.blocks[i].at[at // BLOCK].get(mode="clip")
        return _fold(sums, q, k, v, other & (at <= row))

    start = Sums(jnp.full(BLOCK, LOW), jnp.zeros(BLOCK), jnp.zeros((BLOCK, d)))
    sums = lax.fori_loop(0, whole.sum(dtype=jnp.int32), tile, start)
    sums = lax.fori_loop(0, -(-(head.columns <= row[-1]).sum(dtype=jnp.int32) // BLOCK), columns, sums)
    return sums.out / sums.total[:, None], sums.high + jnp.log(sums.total)


def _near(head: Head, row: Int32[Array, "r 1"], at: Int32[Array, " c"]) -> Bool[Array, "r c"]:
    """Whether a tile's pairs are on a chosen diagonal."""
    return jnp.take(head.offsets, jnp.maximum(row - at, 0), mode="clip")


def _fold(sums: Sums, q: Float32[Array, "r d"], k: Array, v: Array, seen: Bool[Array, "r c"]) -> Sums:
    """The sums after one more tile."""
    z = jnp.where(seen, lax.dot(q, k.astype(jnp.float32).T), -jnp.inf)
    high = jnp.maximum(sums.high, z.max(1))
    p, decay = jnp.exp(z - high[:, None]), jnp.exp(sums.high - high)
    out = sums.out * decay[:, None] + lax.dot(p, v.astype(jnp.float32))
    return Sums(high, sums.total * decay + p.sum(1), out)
