"""Ragged attention against what bounds it: dense attention, ours and PyTorch's, and a plain sum over the same bytes."""

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import STREAK, conditions, interleaved, summary
from experiments.bench.beside import torch_attention
from kvjax.kernels.ragged_attention import ragged_attention
from kvjax.kernels.ragged_attention.shapes import Shape
from kvjax.types import SLACK

#: Layers in one program, as in a decode step: at least so many, and as many as together do not fit a CPU's caches.
LAYERS, BYTES = 8, 96e6


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
        conditions; cells by shape: layers in a program, seconds by piece, bytes read, GB/s, the share of the plain sum's bandwidth
        reached, and ratios above 1 where ragged attention is faster; "peers": their versions, or why there are none.

    Raises:
        ValueError: unknown implementation.
    """
    cells = {name: _measure(shape, dtype, rounds, impl, done) for name, shape in shapes.items()}
    asked = {name: dataclasses.asdict(shape) | {"layers": cells[name]["layers"]} for name, shape in shapes.items()}
    theirs = torch_attention(asked, dtype=dtype, rounds=rounds)
    for name, found in theirs.get("cells", {}).items():
        _add(cells[name], found["seconds"])
    done(1)
    result = conditions("attention", dtype, "times of as many layers in a program as do not fit a CPU's caches")
    return result | {"cells": cells, "peers": theirs.get("versions") or theirs["missing"]}


def _measure(shape: Shape, dtype: str, rounds: int, impl: str | None, done: Callable) -> dict[str, Any]:
    layers = layers_of(shape, dtype)
    compared = {"ragged": ragged(shape, dtype, layers, impl), "sum": _sum(shape, dtype, layers)}
    seconds = interleaved(compared, rounds, streak=STREAK, done=done)
    # By itself: it takes so much longer that the others would mostly be measured recovering from it.
    seconds |= interleaved({"dense": _dense(shape, dtype, layers)}, rounds, streak=STREAK, done=done)
    seconds = {name: summary(values) for name, values in seconds.items()}
    time, read = {name: found["median"] for name, found in seconds.items()}, layers * _bytes(shape, dtype)
    return {
        "layers": layers, "seconds": seconds, "bytes": read, "gb_per_s": read / time["ragged"] / 1e9,
        "share_of_plain_sum": time["sum"] / time["ragged"], "dense / ragged": time["dense"] / time["ragged"],
    }  # fmt: skip


def _add(cell: dict[str, Any], seconds: dict[str, list[float]]) -> None:
    """Put the peers' seconds and the ratios to ours into the cell."""
    for name, values in seconds.items():
        cell["seconds"][name] = summary(values)
        cell[f"{name} / ragged"] = cell["seconds"][name]["median"] / cell["seconds"]["ragged"]["median"]


def layers_of(shape: Shape, dtype: str) -> int:
    """Layers of the shape that together do not fit a CPU's caches."""
    return max(LAYERS, math.ceil(BYTES / _bytes(shape, dtype)))


def _bytes(shape: Shape, dtype: str) -> int:
    return 2 * int(np.sum(shape.lengths)) * shape.d * jnp.dtype(dtype).itemsize


def ragged(shape: Shape, dtype: str, layers: int, impl: str | None) -> Callable[[], Any]:
    """Ragged attention of the shape in each of so many layers, ready to run."""
    length = np.array(shape.lengths, np.int32)
    ends = np.cumsum(-(-length.reshape(-1) // 8) * 8)
    start = np.concatenate([[0], ends[:-1]]).reshape(length.shape).astype(np.int32)
    used = int(ends[-1])
    q, k, v = _normal(shape, dtype, (layers * used + SLACK, shape.d))
    pos = jnp.zeros(k.shape[0], jnp.int32)
    now = jnp.full((length.shape[0], shape.t), int(length.max()), jnp.int32)

    def attend(i, x, k, v, pos, start, length, now):
        return ragged_attention(x, k, v, pos, start + i * used, length, now, impl=impl)[0]

    return _chained(attend, layers, q, k, v, pos, jnp.asarray(start), jnp.asarray(length), now)


def _dense(shape: Shape, dtype: str, layers: int) -> Callable[[], Any]:
    b, h = np.shape(shape.lengths)
    widest = int(np.max(shape.lengths))
    q, k, v = _normal(shape, dtype, (layers, b, h, widest, shape.d))
    valid = jnp.arange(widest) < jnp.asarray(shape.lengths)[..., None]

    def attend(i, x, k, v):
        scores = jnp.einsum("bhgtd,bhnd->bhgtn", x, k[i], preferred_element_type=jnp.float32) / np.sqrt(shape.d)
        weights = jax.nn.softmax(jnp.where(valid[:, :, None, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhgtn,bhnd->bhgtd", weights.astype(v.dtype), v[i])

    return _chained(attend, layers, q, k, v)


def _chained(attend: Callable, layers: int, q: jax.Array, *rest: jax.Array) -> Callable[[], Any]:
    """A layer's queries follow from the layer's before, as in a decode step: XLA would run independent ones side by side."""

    def run(x, *rest):
        for i in range(layers):
            x = x + attend(i, x, *rest)
        return x

    compiled = jax.jit(run)
    return lambda: compiled(q, *rest)


def _sum(shape: Shape, dtype: str, layers: int) -> Callable[[], Any]:
    _, k, v = _normal(shape, dtype, (layers * int(np.sum(shape.lengths)), shape.d))
    run = jax.jit(lambda k, v: (k.sum(dtype=jnp.float32), v.sum(dtype=jnp.float32)))
    return lambda: run(k, v)


def _normal(shape: Shape, dtype: str, kv: tuple[int, ...]) -> list[jax.Array]:
    q = (*np.shape(shape.lengths), shape.g, shape.t, shape.d)
    keys = jax.random.split(jax.random.key(0), 3)
    return [jax.random.normal(key, size, jnp.dtype(dtype)) for key, size in zip(keys, (q, kv, kv), strict=True)]
