"""Codebooks of a prompt's own keys, fitted to it, and what its keys are likely to score (PQCache)."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32, UInt8

from kvjax.codec.product_quantized import nearest_centroids
from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.noise import uniform_at
from kvjax.types import SLACK, Keys, Number

#: A codebook of every KV head and group of channels.
Book = Float32[Array, "h m c e"]


@struct.dataclass
class CodedKeys:
    """One layer's keys as codes. Axis letters: n tokens that are elsewhere, m groups of e channels, c centroids.

    Attributes:
        codes: which centroid each group of a key is nearest to.   book: the centroids of each row.
    """

    codes: UInt8[Array, "b h n m"]
    book: Float[Array, "b h m c e"]


def fitted(
    k: Keys, valid: Bool[Array, " n"], seed: Number = 0, *, groups: int, centroids: int, steps: int
) -> tuple[Book, Int32[Array, "1 h n m"]]:
    """C = argmin Σ_j min_c ||k_j^(i) - C[i, c]||² over one prompt's keys, for each KV head and group of channels; and the codes.

    Lloyd's algorithm from distinct tokens drawn by `seed`, the same for all heads, until no code changes, `steps` means at most. A
    centroid nothing is nearest to stays where it is; of fewer tokens than centroids every one is its own.

    Args:
        k: rotated keys of one row, [1, h, n, d].   valid: which tokens to fit.   groups: of d / groups contiguous channels.
    Source: PQCache, arXiv 2407.12820, section 3.2; starts as in its release.
    """
    parts = k[0].astype(jnp.float32).reshape(k.shape[1], k.shape[2], groups, -1)
    order = jnp.where(valid, uniform_at(seed, jnp.arange(k.shape[2])), 2.0)
    many = min(centroids, k.shape[2])
    at = jnp.argsort(order, stable=True)[:many]
    at = jnp.where(valid[at], at, at[0])
    first = jnp.moveaxis(parts[:, at], 1, 2)

    def moved(state):
        step, before, codes, _ = state
        return (step < steps) & (before != codes).any()

    def mean(state):
        step, _, codes, book = state
        book = _means(parts, codes[0], valid, book)
        return step + 1, codes, nearest_centroids(k, book), book

    codes = nearest_centroids(k, first)
    _, _, codes, book = lax.while_loop(moved, mean, (0, codes - 1, codes, first))
    return jnp.pad(book, ((0, 0), (0, 0), (0, centroids - many), (0, 0)), mode="edge"), codes


def _means(
    parts: Float32[Array, "h n m e"], codes: Int32[Array, "h n m"], valid: Bool[Array, " n"], book: Book
) -> Float32[Array, "h m c e"]:
    """The mean of what each centroid is nearest to."""
    mine = jax.nn.one_hot(codes, book.shape[2]) * valid[:, None, None]
    count = mine.sum(1)[..., None]
    total = jnp.einsum("hnmc,hnme->hmce", mine, parts, precision="highest")
    return jnp.where(count > 0, total / jnp.maximum(count, 1), book)


@partial(jax.jit, static_argnames=("slots", "groups", "centroids", "steps"))
def coded_keys(
    k: Keys, length: Int32[Array, ""], *, slots: int, groups: int, centroids: int, steps: int, seed: Number
) -> CodedKeys:
    """Codebooks of the first `length` tokens of one row, and the codes of `slots`."""
    valid = jnp.arange(k.shape[2]) < length
    book, codes = fitted(k, valid, seed, groups=groups, centroids=centroids, steps=steps)
    return CodedKeys(codes=codes[:, :, :slots].astype(jnp.uint8), book=book[None].astype(k.dtype))


def expected_scores(
    q: Float[Array, "b h g d"], mine: CodedKeys, count: Int32[Array, " b"]
) -> Float32[Array, "b h g n"]:
    """q · k̂ / sqrt(d), k̂ the keys that the codes name, by table look-up; -inf from `count` on."""
    b, h, n, m = mine.codes.shape
    pool = jnp.pad(mine.codes.reshape(b * h * n, m), ((0, SLACK), (0, 0)))
    start = jnp.arange(b * h, dtype=jnp.int32)[None] * n
    held = jnp.repeat(count, h)[None]
    unnumbered, newest = jnp.zeros((len(pool), 0), jnp.int32), jnp.full((1, 1), n, jnp.int32)
    alone, books = q.reshape(1, b * h, *q.shape[2:3], 1, q.shape[3]), mine.book.reshape(b * h, *mine.book.shape[2:])
    z = codebook_scores(alone, pool, books, unnumbered, start, held, newest, cap=n)
    return z.reshape(*q.shape[:3], n)


def group_worth(z: Float32[Array, "b h g n"], valid: Bool[Array, "b n"]) -> Float32[Array, "b h n"]:
    """u = Σ_g softmax_j(z): the query heads of a KV head choose together."""
    real = valid[:, None, None]
    return jnp.where(real, jax.nn.softmax(jnp.where(real, z, -1e30), -1), 0.0).sum(2)
