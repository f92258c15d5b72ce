"""Ragged attention against what bounds it: dense attention over the widest head, and a plain sum over the same bytes."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import conditions, interleaved, summary
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.kernels.ragged_attention.shapes import Shape
from kvjax.types import SLACK

#: Layers in one program, as in a decode step: their keys and values do not fit a CPU's caches.
LAYERS = 8


def attention(
    shapes: dict[str, Shape], dtype: str, rounds: int, *, impl: str | None = None, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time ragged attention.

    Args:
        shapes: by name: lengths of the regions, query heads, new tokens, head dimension.
        dtype: of queries, keys and values.
        rounds: times each piece of work runs; medians are reported.
        impl: which implementation; None lets the library choose.

    Returns:
        conditions; cells by shape: seconds by piece, bytes read, GB/s, the share of the plain sum's bandwidth reached.

    Raises:
        ValueError: unknown implementation.
    """
    cells = {name: _measure(shape, dtype, rounds, impl, done) for name, shape in shapes.items()}
    return conditions("attention", dtype, f"times of {LAYERS} layers in a program") | {"cells": cells}


def _measure(shape: Shape, dtype: str, rounds: int, impl: str | None, done: Callable) -> dict[str, Any]:
    compared = {"ragged": ragged(shape, dtype, impl), "sum": _sum(shape, dtype)}
    seconds = interleaved(compared, rounds, done=done)
    # By itself: it takes so much longer that the others would mostly be measured recovering from it.
    seconds |= interleaved({"dense": _dense(shape, dtype)}, rounds, done=done)
    seconds = {name: summary(values) for name, values in seconds.items()}
    time = {name: found["median"] for name, found in seconds.items()}
    read = 2 * LAYERS * int(np.sum(shape.lengths)) * shape.d * jnp.dtype(dtype).itemsize
    return {
        "seconds": seconds, "bytes": read, "gb_per_s": read / time["ragged"] / 1e9,
        "share_of_plain_sum": time["sum"] / time["ragged"], "dense / ragged": time["dense"] / time["ragged"],
    }  # fmt: skip


def ragged(shape: Shape, dtype: str, impl: str | None) -> Callable[[], Any]:
    """Ragged attention of the shape in each of LAYERS layers, ready to run."""
    length = np.array(shape.lengths, np.int32)
    ends = np.cumsum(-(-length.reshape(-1) // 8) * 8)
    start = np.concatenate([[0], ends[:-1]]).reshape(length.shape).astype(np.int32)
    used = int(ends[-1])
    q, k, v = _normal(shape, dtype, (LAYERS * used + SLACK, shape.d))
    pos = jnp.zeros(k.shape[0], jnp.int32)
    now = jnp.full((length.shape[0], shape.t), int(length.max()), jnp.int32)

    def run(q, k, v, pos, start, length, now):
        layer = lambda i: ragged_attention(q[i], k, v, pos, start + i * used, length, now, impl=impl)  # noqa: E731
        return [layer(i) for i in range(LAYERS)]

    compiled = jax.jit(run)
    args = (q, k, v, pos, jnp.asarray(start), jnp.asarray(length), now)
    return lambda: compiled(*args)


def _dense(shape: Shape, dtype: str) -> Callable[[], Any]:
    b, h = np.shape(shape.lengths)
    widest = int(np.max(shape.lengths))
    q, k, v = _normal(shape, dtype, (LAYERS, b, h, widest, shape.d))
    valid = jnp.arange(widest) < jnp.asarray(shape.lengths)[..., None]

    def layer(q, k, v):
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", q, k, preferred_element_type=jnp.float32) / np.sqrt(shape.d)
        weights = jax.nn.softmax(jnp.where(valid[:, :, None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhgtn,bhnd->bhgtd", weights.astype(v.dtype), v)

    compiled = jax.jit(lambda q, k, v: [layer(q[i], k[i], v[i]) for i in range(LAYERS)])
    return lambda: compiled(q, k, v)


def _sum(shape: Shape, dtype: str) -> Callable[[], Any]:
    _, k, v = _normal(shape, dtype, (LAYERS * int(np.sum(shape.lengths)), shape.d))
    run = jax.jit(lambda k, v: (k.sum(dtype=jnp.float32), v.sum(dtype=jnp.float32)))
    return lambda: run(k, v)


def _normal(shape: Shape, dtype: str, kv: tuple[int, ...]) -> list[jax.Array]:
    q = (LAYERS, *np.shape(shape.lengths), shape.g, shape.t, shape.d)
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, size, jnp.dtype(dtype)) for key, size in zip(keys, (q, kv, kv), strict=True)]
