"""Attention over chosen columns, diagonals and blocks: only tiles of 64 by 64 with something chosen are computed.

A query block takes the key blocks that a chosen diagonal or block touches, one after the other, and then the chosen columns,
gathered 64 at a time; softmax and sums go on from tile to tile.
"""

import math
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.prefill.sparse_index import BLOCK, SparseIndex
from kvjax.types import Keys, Queries, Values

#: Below every score, and finite.
_LOW = -1e30


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


def sparse_attention(
    q: Queries, k: Keys, v: Values, index: SparseIndex, *, offset: Int32[Array, ""]
) -> tuple[Queries, Float32[Array, "b h g t"]]:
    """(out, lse) of queries from position `offset`, a multiple of 64, on, each over the keys that `index` lets it see."""
    b, h, g, t, d = q.shape
    n = k.shape[2]
    queries = jnp.pad(q, ((0, 0),) * 3 + ((0, -t % BLOCK), (0, 0))).reshape(b * h * g, -1, BLOCK, d)
    k, v = (jnp.pad(x, ((0, 0), (0, 0), (0, -n % BLOCK), (0, 0))).reshape(b * h, -1, d) for x in (k, v))

    def flat(x):
        return x.reshape(b * h * g, *x.shape[3:])

    offsets = jnp.pad(flat(index.offsets), ((0, 0), (0, -n % BLOCK)))
    listed = jax.vmap(lambda x: jnp.nonzero(x, size=-(-index.most // BLOCK) * BLOCK, fill_value=k.shape[1])[0].astype(jnp.int32))
    index_of = listed(flat(index.columns)), offsets, flat(index.blocks)

    def head(r, own):
        return _head(Head(own[0], k[r // g], v[r // g], *own[1:]), offset)

    out, lse = lax.map(lambda x: head(x[0], x[1:]), (jnp.arange(b * h * g), queries, *index_of))
    out, lse = out.reshape(b, h, g, -1, d), lse.reshape(b, h, g, -1)
    return out[:, :, :, :t].astype(q.dtype), lse[..., :t]


def tiles(
    offsets: Bool[Array, "*heads n"], blocks: Bool[Array, "*heads i j"], offset: Int32[Array, ""]
) -> Bool[Array, "*heads i j"]:
    """Key blocks that a query block takes whole: those with a chosen diagonal in them, or chosen as blocks."""
    i, j = (jnp.arange(size, dtype=jnp.int32) for size in blocks.shape[-2:])
    nearest = offset + i[:, None] * BLOCK - j * BLOCK
    before = jnp.pad(jnp.cumsum(offsets, -1, dtype=jnp.int32), ((0, 0),) * (offsets.ndim - 1) + ((1, 0),))

    def upto(x):
        return jnp.take(before, jnp.clip(x, 0, offsets.shape[-1]), axis=-1)

    touched = upto(nearest + BLOCK) > upto(nearest - BLOCK + 1)
    return (touched | blocks) & (nearest >= 0)


def computed_tiles(index: SparseIndex, offset: Int32[Array, ""], count: Int32[Array, " b"]) -> tuple[Array, Array]:
    """(tiles computed, tiles under the diagonal), int32 [b h g] each, of the query blocks that hold a real query."""
    i = jnp.arange(index.blocks.shape[3], dtype=jnp.int32)
    real = (i * BLOCK < count[:, None])[:, None, None]
    whole = tiles(index.offsets, index.blocks, offset).sum(-1, dtype=jnp.int32)
    last = jnp.minimum(offset + (i + 1) * BLOCK, index.columns.shape[-1])
    seen = jnp.take(jnp.cumsum(index.columns, -1, dtype=jnp.int32), last - 1, axis=-1)
    under = offset // BLOCK + i + 1
    total = jnp.where(real, jnp.minimum(whole + -(-seen // BLOCK), under), 0).sum(-1)
    return total, jnp.broadcast_to(jnp.where(real, under, 0).sum(-1), total.shape)


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

    start = Sums(jnp.full(BLOCK, _LOW), jnp.zeros(BLOCK), jnp.zeros((BLOCK, d)))
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
