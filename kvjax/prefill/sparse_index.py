"""Which keys a sparse head sees, estimated from the last queries of a chunk (MInference): columns, diagonals, blocks.

Axis letters: r rows the estimate is made from, i query blocks, j key blocks.
"""

from functools import partial

import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.softmax import softmax
from kvjax.kernels.sparse_attention import BLOCK
from kvjax.order import places
from kvjax.prefill.patterns import FORCED_COLUMNS
from kvjax.types import Keys, Queries

#: Queries that vote.
LAST = 64


@struct.dataclass
class SparseIndex:
    """A query at p sees key j <= p if its column, its offset p - j or its block is chosen.

    Attributes:
        columns: by key.   offsets: by distance.   blocks: by query block of the chunk and key block.
        most: no head has more columns; static.
    """

    columns: Bool[Array, "b h g n"]
    offsets: Bool[Array, "b h g n"]
    blocks: Bool[Array, "b h g i j"]
    most: int = struct.field(pytree_node=False)


def last_rows(
    q: Queries, k: Keys, offset: Int32[Array, ""], count: Int32[Array, " b"], last: int = LAST
) -> tuple[Float32[Array, "b h g r n"], Int32[Array, "b r"]]:
    """Attention rows of the last min(last, count) real queries, 0 for the rows there are not, and their positions."""
    index = count[:, None] - last + jnp.arange(last, dtype=jnp.int32)
    where = jnp.maximum(index, 0)
    rows = jnp.take_along_axis(q, where[:, None, None, :, None], 3)
    z = jnp.einsum("bhgrd,bhnd->bhgrn", rows, k, preferred_element_type=jnp.float32) / np.sqrt(q.shape[-1])
    seen = (jnp.arange(k.shape[2]) <= (offset + where)[..., None])[:, None, None]
    p = softmax(jnp.where(seen, z, -jnp.inf))
    return jnp.where((index >= 0)[:, None, None, :, None], p, 0.0), offset + where


def vertical(p: Float32[Array, "b h g r n"]) -> Float32[Array, "b h g n"]:
    """vertical[k] = Σ_q P[q, k]."""
    return p.sum(3)


def slash(p: Float32[Array, "b h g r n"], positions: Int32[Array, "b r"]) -> Float32[Array, "b h g n"]:
    """slash[o] = Σ_q P[q, position of q - o]."""
    at = positions[..., None] - jnp.arange(p.shape[-1], dtype=jnp.int32)
    moved = jnp.take_along_axis(p, jnp.maximum(at, 0)[:, None, None], -1)
    return jnp.where((at >= 0)[:, None, None], moved, 0.0).sum(3)


def pooled(
    q: Queries, k: Keys, offset: Int32[Array, ""], count: Int32[Array, " b"], size: int = BLOCK
) -> Float32[Array, "b h g i j"]:
    """softmax over key blocks of mean q · mean k / sqrt(d); inf for a query's own block, -1 for those behind it."""
    queries = _block_means(q, jnp.arange(q.shape[3]) < count[:, None], size)
    keys = _block_means(k, jnp.arange(k.shape[2]) < (offset + count)[:, None], size)
    z = jnp.einsum("bhgid,bhjd->bhgij", queries, keys) / np.sqrt(q.shape[-1])
    own = offset // size + jnp.arange(z.shape[3], dtype=jnp.int32)[:, None]
    j = jnp.arange(z.shape[4], dtype=jnp.int32)
    shares = jnp.where(j == own, jnp.inf, softmax(jnp.where(j <= own, z, -jnp.inf)))
    return jnp.where(j <= own, shares, -1.0)


def highest(scores: Float32[Array, "*heads n"], size: Int32[Array, "*heads"], forced: int = 0) -> Bool[Array, "*heads n"]:
    """The `size` highest scores, the first `forced` places before all others; equal ones: the lower place."""
    scores = jnp.where(jnp.arange(scores.shape[-1]) < forced, jnp.inf, scores)
    rank = places(jnp.argsort(-scores, -1, stable=True))
    return rank < size[..., None]


def sparse_index(
    sizes: Int32[Array, "h g 5"], q: Queries, k: Keys, offset: Int32[Array, ""], count: Int32[Array, " b"], *, most: int,
    nearest: int,
) -> SparseIndex:  # fmt: skip
    """What every query head of a layer sees, by the sizes of its pattern (`Pattern.sizes`); no head has more than `most` columns.

    The `nearest` offsets come before all others where a head has offsets by score. Sizes are data: layers whose patterns differ
    share a program, and what no head of a layer needs is not computed.
    """
    first, recent, columns, offsets, blocks = (jnp.broadcast_to(sizes[..., i], q.shape[:3]) for i in range(5))
    place = jnp.arange(k.shape[2], dtype=jnp.int32)
    by_score = partial(_by_score, nearest=nearest)
    by_column, by_offset = lax.cond((columns > 0).any(), by_score, _none_by_score, q, k, offset, count, columns, offsets)
    return SparseIndex(
        columns=by_column | (place < first[..., None]),
        offsets=by_offset | (place < recent[..., None]),
        blocks=lax.cond((blocks > 0).any(), _by_block, _no_block, q, k, offset, count, blocks),
        most=min(k.shape[2], most),
    )


def _by_score(q, k, offset, count, columns, offsets, *, nearest: int) -> tuple[Bool[Array, "b h g n"], Bool[Array, "b h g n"]]:
    """The columns and the distances that the last queries give most to; none of a head that wants none."""
    p, positions = last_rows(q, k, offset, count)
    real = jnp.arange(k.shape[2], dtype=jnp.int32) < (offset + count)[:, None, None, None]
    by_column = highest(jnp.where(real, vertical(p), -1.0), columns, FORCED_COLUMNS) & real
    return by_column, highest(jnp.where(real, slash(p, positions), -1.0), offsets, nearest)


def _none_by_score(q, k, *rest) -> tuple[Bool[Array, "b h g n"], Bool[Array, "b h g n"]]:
    del rest
    none = jnp.zeros((*q.shape[:3], k.shape[2]), bool)
    return none, none


def _by_block(q, k, offset, count, blocks) -> Bool[Array, "b h g i j"]:
    """The key blocks of the largest pooled products, of each query block."""
    scores = pooled(q, k, offset, count)
    return highest(scores, jnp.broadcast_to(blocks[..., None], scores.shape[:4])) & (scores >= 0)


def _no_block(q, k, *rest) -> Bool[Array, "b h g i j"]:
    del rest
    return jnp.zeros((*q.shape[:3], -(-q.shape[3] // BLOCK), -(-k.shape[2] // BLOCK)), bool)


def sees(index: SparseIndex, rows: Int32[Array, " r"], offset: Int32[Array, ""]) -> Bool[Array, "b h g r n"]:
    """The mask of some queries of the chunk, (column ∪ diagonal ∪ block) ∩ causal."""
    n = index.columns.shape[-1]
    distance = (offset + rows)[:, None] - jnp.arange(n, dtype=jnp.int32)
    near = jnp.take(index.offsets, jnp.maximum(distance, 0), axis=-1, mode="clip")
    block = jnp.minimum(rows // BLOCK, index.blocks.shape[3] - 1)
    blocks = jnp.take(index.blocks, block, axis=3)[..., jnp.arange(n) // BLOCK]
    return (index.columns[..., None, :] | near | blocks) & (distance >= 0)


def _block_means(x: Float[Array, "b *heads n d"], real: Bool[Array, "b n"], size: int) -> Float32[Array, "b *heads m d"]:
    """Mean of the real rows of each block of `size`; 0 for a block without any."""
    pad = -x.shape[-2] % size
    real = jnp.pad(real, ((0, 0), (0, pad))).reshape(x.shape[0], *(1,) * (x.ndim - 3), -1, size, 1)
    x = jnp.pad(x.astype(jnp.float32), ((0, 0),) * (x.ndim - 2) + ((0, pad), (0, 0)))
    x = x.reshape(*x.shape[:-2], -1, size, x.shape[-1])
    return jnp.where(real, x, 0.0).sum(-2) / jnp.maximum(real.sum(-2), 1)
