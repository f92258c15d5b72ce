"""Ragged attention against what bounds it: dense attention over the widest head, and a plain sum over the same bytes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import conditions, interleaved, summary
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.kernels.ragged_attention.shapes import ALL, Shape
from kvjax.types import SLACK


def shape_of(name: str) -> Shape:
    """The shape of that name in `kvjax.kernels.ragged_attention.shapes`. Raises ValueError for an unknown one."""
    if name not in ALL:
        raise ValueError(f"unknown shape {name!r}; known: {', '.join(ALL)}")
    return ALL[name]


def attention(
    shape: Shape, dtype: str, rounds: int, *, impl: str | None = None, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time ragged attention of a shape.

    Args:
        shape: lengths of the regions, query heads, new tokens, head dimension.
        dtype: of queries, keys and values.
        rounds: times each piece of work runs; medians are reported.
        impl: which implementation; None lets the library choose.

    Returns:
        milliseconds by piece, bytes read, GB/s, the share of the plain sum's bandwidth that attention reaches.

    Raises:
        ValueError: unknown implementation.
    """
    ragged, dense, total = _ragged(shape, dtype, impl), _dense(shape, dtype), _sum(shape, dtype)
    seconds = interleaved({"ragged": ragged, "dense, padded to the widest": dense, "plain sum": total}, rounds, done=done)
    read = 2 * int(np.sum(shape.lengths)) * shape.d * jnp.dtype(dtype).itemsize
    times = {piece: summary(values) for piece, values in seconds.items()}
    rate = {piece: read / times[piece]["median"] / 1e9 for piece in ("ragged", "plain sum")}
    words = f"lengths {shape.lengths}, {shape.g} queries a head, {shape.t} new, d {shape.d}"
    return conditions("attention", dtype, words) | {
        "seconds": times,
        "bytes": read,
        "gb_per_s": rate,
        "ratios": {
            "share of the plain sum's bandwidth": rate["ragged"] / rate["plain sum"],
            "dense / ragged": times["dense, padded to the widest"]["median"] / times["ragged"]["median"],
        },
    }


def _ragged(shape: Shape, dtype: str, impl: str | None) -> Callable[[], Any]:
    length = np.array(shape.lengths, np.int32)
    ends = np.cumsum(-(-length.reshape(-1) // 8) * 8)
    start = np.concatenate([[0], ends[:-1]]).reshape(length.shape).astype(np.int32)
    slots = int(ends[-1]) + SLACK
    q, k, v = _normal(shape, dtype, (slots, shape.d))
    pos = jnp.zeros(slots, jnp.int32)
    now = jnp.full((length.shape[0], shape.t), int(length.max()), jnp.int32)
    run = jax.jit(lambda *args: ragged_attention(*args, impl=impl))
    args = (q, k, v, pos, jnp.asarray(start), jnp.asarray(length), now)
    return lambda: run(*args)


def _dense(shape: Shape, dtype: str) -> Callable[[], Any]:
    b, h = np.shape(shape.lengths)
    widest = int(np.max(shape.lengths))
    q, k, v = _normal(shape, dtype, (b, h, widest, shape.d))
    valid = jnp.arange(widest) < jnp.asarray(shape.lengths)[..., None]

    def run(q, k, v):
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32) / np.sqrt(shape.d)
        weights = jax.nn.softmax(jnp.where(valid[:, :, None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhgtn,bhnd->bhgtd", weights.astype(v.dtype), v)

    compiled = jax.jit(run)
    return lambda: compiled(q, k, v)


def _sum(shape: Shape, dtype: str) -> Callable[[], Any]:
    _, k, v = _normal(shape, dtype, (int(np.sum(shape.lengths)), shape.d))
    run = jax.jit(lambda k, v: (k.sum(dtype=jnp.float32), v.sum(dtype=jnp.float32)))
    return lambda: run(k, v)


def _normal(shape: Shape, dtype: str, kv: tuple[int, ...]) -> list[jax.Array]:
    q = (*np.shape(shape.lengths), shape.g, shape.t, shape.d)
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, size, jnp.dtype(dtype)) for key, size in zip(keys, (q, kv, kv), strict=True)]
