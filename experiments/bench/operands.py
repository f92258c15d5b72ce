"""Operands of one call of each GPU kernel, with its dense counterpart and the exact result."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.kernels.gather_attention import gather_attention
from kvjax.kernels.ragged_attention import ragged_attention, ragged_scores
from kvjax.types import SLACK


def named[T](shapes: Mapping[str, T], text: str) -> dict[str, T]:
    """Those with `text` in their names. Raises ValueError where there are none; lists those there are."""
    found = {name: shape for name, shape in shapes.items() if text in name}
    if not found:
        raise ValueError(f"no shape's name has {text!r} in it; there are: {'; '.join(shapes)}")
    return found


@dataclass(frozen=True)
class Operands:
    """One call.

    Attributes:
        call: (*arrays, impl) -> a tuple of results.   arrays: its operands.   read: bytes that it has to move.
        exact: () -> the results in float64.
        dense: (*whole) -> attention, or scores, over everything, as XLA computes it.   whole: its operands.   full: bytes it reads.
        ours: (*pool, impl) -> the same by our own ragged kernel.   pool: its operands.
    """

    call: Callable
    arrays: tuple
    read: int
    exact: Callable
    dense: Callable
    whole: tuple
    full: int
    ours: Callable
    pool: tuple


def regions(shape: Any, dtype: str) -> Operands:
    """Ragged attention beside dense attention over the widest region of each head; NaN in slots of no region."""
    length = np.array(shape.lengths, np.int32)
    b, h = length.shape
    ends = np.cumsum(-(-length.reshape(-1) // 8) * 8)
    start = (ends - -(-length.reshape(-1) // 8) * 8).reshape(b, h).astype(np.int32)
    q, k, v = _normal((b, h, shape.g, 1, shape.d), (ends[-1] + SLACK, shape.d), dtype)
    held = np.concatenate([np.arange(s, s + n) for s, n in zip(start.ravel(), length.ravel(), strict=True)])
    outside = jnp.ones(k.shape[0], bool).at[held].set(False)[:, None]
    k, v = jnp.where(outside, jnp.nan, k).astype(dtype), jnp.where(outside, jnp.nan, v).astype(dtype)
    now = jnp.full((b, 1), length.max(), jnp.int32)
    arrays = (q, k, v, jnp.zeros(k.shape[0], jnp.int32), jnp.asarray(start), jnp.asarray(length), now)
    slots = {at: np.arange(start[at], start[at] + length[at]) for at in np.ndindex(b, h)}
    row = shape.d * jnp.dtype(dtype).itemsize
    exact, widest = partial(_attention64, q, k, v, slots), int(length.max())
    return Operands(_attend, arrays, 2 * int(length.sum()) * row, exact, *_dense(q, widest, dtype))


def lists(shape: Any, dtype: str) -> Operands:
    """Attention over listed slots beside dense attention over all slots of each head."""
    rng, count = np.random.default_rng(0), np.array(shape.counts, np.int32)
    b, h = count.shape
    named = np.zeros((b, h, shape.m), np.int32)
    for at in np.ndindex(b, h):
        named[at] = rng.choice(shape.slots // h, shape.m, replace=False) + at[1] * (shape.slots // h)
    q, k, v = _normal((b, h, shape.g, 1, shape.d), (shape.slots, shape.d), dtype)
    slots = {at: named[at][: count[at]] for at in np.ndindex(b, h)}
    read = int(count.sum()) * (2 * shape.d * jnp.dtype(dtype).itemsize + 4)

    def call(*x):
        return gather_attention(*x[:-1], impl=x[-1])

    arrays, exact = (q, k, v, jnp.asarray(named), jnp.asarray(count)), partial(_attention64, q, k, v, slots)
    return Operands(call, arrays, read, exact, *_dense(q, shape.slots // h, dtype))


def codes(shape: Any, dtype: str) -> Operands:
    """Scores from codes beside the scores of dense keys; what the first writes counts as moved."""
    rng, e, n = np.random.default_rng(0), shape.d // shape.m, shape.slots
    kind = np.uint8 if shape.c <= 256 else np.uint16
    index = rng.integers(0, shape.c, (shape.h * n, shape.m)).astype(kind)
    book = rng.normal(size=(shape.h, shape.m, shape.c, e)).astype(np.float16)
    q, k, _ = _normal((1, shape.h, shape.g, 1, shape.d), (1, shape.d), dtype)
    start, length = np.arange(shape.h, dtype=np.int32)[None] * n, np.full((1, shape.h), n, np.int32)
    where = (jnp.zeros(index.shape[0], jnp.int32), jnp.asarray(start), jnp.asarray(length), jnp.full((1, 1), n, jnp.int32))

    def call(*x):
        return (codebook_scores(*x[:-1], cap=n, impl=x[-1]),)

    def exact():
        decoded = [book[i][np.arange(shape.m), index[i * n : (i + 1) * n]].reshape(n, shape.d) for i in range(shape.h)]
        keys = np.stack(decoded).astype(np.float64)
        return (np.einsum("bhgtd,hnd->bhgtn", np.asarray(q, np.float64), keys) / math.sqrt(shape.d),)

    _, (_, keys, _), full, _, (_, pool, _, *at) = _dense(q, n, dtype)

    def scores(q, k):
        return jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32)

    def ours(*x):
        return (ragged_scores(*x[:-1], cap=n, impl=x[-1]),)

    moved = index.nbytes + 4 * shape.h * shape.g * n
    arrays = (q, jnp.asarray(index), jnp.asarray(book), *where)
    return Operands(call, arrays, moved, exact, scores, (q, keys), full // 2, ours, (q, pool, *at))


def _attend(*operands: Any) -> tuple:
    """Ragged attention; the last operand is the implementation."""
    return ragged_attention(*operands[:-1], impl=operands[-1])


def _dense(q: Any, n: int, dtype: str) -> tuple[Callable, tuple, int, Callable, tuple]:
    """(attention by XLA, operands, bytes, attention by our kernel, operands) over n slots of every head."""
    b, h, _, _, d = q.shape
    _, k, v = _normal(q.shape, (b, h, n, d), dtype)

    def attend(q, k, v):
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32) / math.sqrt(d)
        weights = jnp.exp(scores - scores.max(-1, keepdims=True))
        return jnp.einsum("bhgtn,bhnd->bhgtd", (weights / weights.sum(-1, keepdims=True)).astype(v.dtype), v)

    return attend, (q, k, v), k.nbytes + v.nbytes, _attend, (q, *_pool(k, v))


def _pool(k: Any, v: Any) -> tuple:
    """Keys and values [b, h, n, d] as a pool of regions: k, v, positions, starts, lengths and the query's position."""
    b, h, n, d = k.shape
    wide = -(-n // 8) * 8
    k, v = (jnp.pad(jnp.pad(x, [(0, 0), (0, 0), (0, wide - n), (0, 0)]).reshape(-1, d), [(0, SLACK), (0, 0)]) for x in (k, v))
    start = jnp.arange(b * h, dtype=jnp.int32).reshape(b, h) * wide
    return k, v, jnp.zeros(k.shape[0], jnp.int32), start, jnp.full((b, h), n, jnp.int32), jnp.full((b, 1), n, jnp.int32)


def _normal(q: tuple, kv: tuple, dtype: str) -> list:
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, tuple(map(int, size)), dtype) for key, size in zip(keys, (q, kv, kv), strict=True)]


def _attention64(q: Any, k: Any, v: Any, slots: dict) -> tuple[np.ndarray, np.ndarray]:
    """(out, lse) of the query heads of every (row, KV head) over its slots."""
    q, out, lse = np.asarray(q, np.float64), np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for at, mine in slots.items():
        if len(mine):
            keys, values = (np.asarray(x[mine], np.float64) for x in (k, v))
            scores = q[at][:, 0] @ keys.T / math.sqrt(q.shape[-1])
            high = scores.max(-1, keepdims=True)
            total = np.exp(scores - high).sum(-1, keepdims=True)
            out[at][:, 0], lse[at] = np.exp(scores - high) / total @ values, high + np.log(total)
    return out, lse
