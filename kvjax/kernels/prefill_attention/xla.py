"""Prefill attention in plain XLA: loops over tiles of queries by keys, online softmax in float32.

On a CPU heads follow one another, so that a tile stays in its caches; elsewhere a step of the loops is of all heads at once.

Trip counts are data (they follow `offset`), so blocks above the diagonal or outside the window are never computed, and
only the blocks that the diagonal or the window's edge crosses are masked. Beside operands and results there is only one
tile in memory.
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
    """Tiling: most query positions, most query rows (positions by g heads) and most keys of a tile of scores.

    The default tile is 3 MB of scores, near the second-level cache of two cores.
    """

    q_block: int = 512
    rows: int = 1536
    k_block: int = 512


@dataclasses.dataclass(frozen=True)
class Tiling:
    """A Config made to fit one call."""

    rows: int
    keys: int
    count: int
    window: int | None

    @classmethod
    def fit(cls, config: Config, q, k, window: int | None) -> "Tiling":
        g, t = q.shape[2:4]
        rows = min(config.q_block, max(config.rows // g // 8 * 8, 8), t)
        return cls(rows, min(config.k_block, k.shape[2]), -(-t // rows), window)


@partial(jax.jit, static_argnames=("window", "config"))
def attention(q, k, v, offset, *, window: int | None, config: Config = Config()):
    """See `api.prefill_attention`."""
    tiling = Tiling.fit(config, q, k, window)

    def head(args):
        tiles, keys, values = args

        def tile(index_queries):
            index, queries = index_queries
            return _attend(queries, keys, values, offset + index * tiling.rows, tiling)

        return lax.map(tile, (jnp.arange(tiling.count), tiles))

    out, lse = _each_head(head, (_split(q, tiling), _flat(k), _flat(v)))
    return _join(out, q.shape).astype(q.dtype), _join(lse, q.shape[:-1])


@partial(jax.jit, static_argnames=("window", "config"))
def column_sums(q, k, lse, offset, length, *, window: int | None, config: Config = Config()):
    """See `api.column_sums`."""
    tiling = Tiling.fit(config, q, k, window)
    counted = offset + jnp.arange(q.shape[3]) < length[:, None]
    # A row that does not count gets an infinite denominator: all its probabilities are zero.
    lse = jnp.where(counted[:, None, None, :], lse, jnp.inf)

    def head(args):
        tiles, lses, keys = args

        def tile(index, total):
            return _sum_columns(total, tiles[index], lses[index], keys, offset + index * tiling.rows, tiling)

        return lax.fori_loop(0, tiling.count, tile, jnp.zeros((q.shape[2], keys.shape[0]), jnp.float32))

    sums = _each_head(head, (_split(q, tiling), _split(lse, tiling, fill=jnp.inf), _flat(k)))
    return sums.reshape(*k.shape[:2], q.shape[2], k.shape[2])


@partial(jax.jit, static_argnames="window")
def attention_and_column_sums(q, k, v, offset, length, *, window: int | None):
    """See `api.attention_and_column_sums`: one after the other."""
    out, lse = attention(q, k, v, offset, window=window)
    return out, lse, column_sums(q, k, lse, offset, length, window=window)


def _each_head(head, operands):
    """head of every row and KV head of the operands, [b*h, ...] each."""
    how = {"cpu": partial(_one_by_one, head), "default": partial(_together, head)}
    return lax.platform_dependent(*operands, **how)


def _one_by_one(head, *operands):
    return lax.map(head, operands)


def _together(head, *operands):
    return jax.vmap(lambda *own: head(own))(*operands)


def _attend(queries: Float[Array, "r d"], keys: Float[Array, "n d"], values: Float[Array, "n d"], first, tiling):
    """One tile of query rows against all keys it sees: (out [r d], lse [r]), both float32."""

    def fold(block, carry, masked):
        high, total, out = carry
        scores, at = _scores(queries, keys, block, first, tiling, masked)
        new = jnp.maximum(high, scores.max(axis=1))
        weights = jnp.exp((scores - new[:, None]) * scale)
        decay = jnp.exp((high - new) * scale)
        part = lax.dynamic_slice_in_dim(values, at, tiling.keys)
        added = lax.dot(weights.astype(values.dtype), part, preferred_element_type=jnp.float32)
        return new, total * decay + weights.sum(axis=1), out * decay[:, None] + added

    rows, d = queries.shape
    scale = 1 / math.sqrt(d)
    start = jnp.full(rows, LOW), jnp.zeros(rows), jnp.zeros((rows, d))
    high, total, out = _over_blocks(fold, start, first, keys.shape[0], tiling)
    return out / total[:, None], high * scale + jnp.log(total)


def _sum_columns(sums: Float[Array, "g n"], queries, lse: Float[Array, " r"], keys, first, tiling: Tiling):
    """Add one tile's probabilities to the column sums of the keys it sees."""

    scale = 1 / math.sqrt(queries.shape[1])

    def fold(block, sums, masked):
        scores, at = _scores(queries, keys, block, first, tiling, masked)
        mass = jnp.exp(scores * scale - lse[:, None]).reshape(sums.shape[0], tiling.rows, tiling.keys).sum(axis=1)
        part = lax.dynamic_slice_in_dim(sums, at, tiling.keys, axis=1) + mass
        return lax.dynamic_update_slice_in_dim(sums, part, at, axis=1)

    return _over_blocks(fold, sums, first, keys.shape[0], tiling)


def _over_blocks(fold, carry, first, n: int, tiling: Tiling):
    """Fold the key blocks that rows first .. first+rows-1 see; those that all rows see whole go unmasked."""
    last = jnp.minimum(first + tiling.rows, n) - 1
    stop = last // tiling.keys + 1
    # The last block of all is shifted back to end with the keys: only a mask can undo what it sees twice.
    edge = jnp.minimum((first + 1) // tiling.keys, n // tiling.keys)
    begin = whole = 0
    if tiling.window is not None:
        begin = jnp.maximum(first - tiling.window + 1, 0) // tiling.keys
        whole = jnp.clip(-((tiling.window - first - tiling.rows) // tiling.keys), begin, stop)
        edge = jnp.maximum(edge, whole)
        carry = lax.fori_loop(begin, whole, partial(fold, masked=True), carry)
    carry = lax.fori_loop(whole, edge, partial(fold, masked=False), carry)
    return lax.fori_loop(edge, stop, partial(fold, masked=True), carry)


def _scores(queries: Float[Array, "r d"], keys: Float[Array, "n d"], block, first, tiling: Tiling, masked: bool):
    """Unscaled scores of one tile, float32 [r, tiling.keys], and the index of its first key."""
    n = keys.shape[0]
    at = jnp.minimum(block * tiling.keys, n - tiling.keys)
    part = lax.dynamic_slice_in_dim(keys, at, tiling.keys)
    scores = lax.dot_general(queries, part, (((1,), (1,)), ((), ())), preferred_element_type=jnp.float32)
    if not masked:
        return scores, at
    row = first + jnp.arange(scores.shape[0])[:, None] % tiling.rows
    col = at + jnp.arange(tiling.keys)[None, :]
    seen = (col <= row) & (col >= block * tiling.keys)
    if tiling.window is not None:
        seen &= col > row - tiling.window
    return jnp.where(seen, scores, -jnp.inf), at


def _flat(x: Float[Array, "b h *rest"]):
    """Rows and KV heads as one axis."""
    return x.reshape(-1, *x.shape[2:])


def _split(x: Float[Array, "b h g t *rest"], tiling: Tiling, fill=0):
    """[b*h, tile, g*rows, *rest]: the g heads of a tile one after the other, so that one product serves them all."""
    b, h, g, t, *rest = x.shape
    x = jnp.pad(x, [(0, 0)] * 3 + [(0, tiling.count * tiling.rows - t)] + [(0, 0)] * len(rest), constant_values=fill)
    x = x.reshape(b * h, g, tiling.count, tiling.rows, *rest)
    return jnp.moveaxis(x, 1, 2).reshape(b * h, tiling.count, g * tiling.rows, *rest)


def _join(x: Float[Array, "bh tile r *rest"], shape: tuple[int, ...]):
    """Undo `_split`: back to [b, h, g, t, *rest]."""
    b, h, g, t, *rest = shape
    x = jnp.moveaxis(x.reshape(b * h, x.shape[1], g, -1, *rest), 2, 1)
    return x.reshape(b, h, g, -1, *rest)[:, :, :, :t]
