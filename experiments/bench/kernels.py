"""Kernels over named shapes: right to float64, and their share of the machine's copy bandwidth, beside dense attention."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.bench import STREAK, conditions, interleaved, summary
from experiments.bench.operands import Operands, codes, lists, named, regions
from kvjax.kernels.codebook_scores.shapes import SHAPES as CODES
from kvjax.kernels.gather_attention.shapes import SHAPES as LISTS
from kvjax.kernels.ragged_attention.shapes import ALL, Shape

KERNELS = ("ragged", "gather", "codes")
#: Bytes that the layers of one program read at least: more than a card's last cache holds.
BEYOND_CACHE = 1 << 28
#: Largest error that is rounding.
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2, "float16": 2e-2}
#: Half a million slots, shared alike and 32 to 1; both read 268 MB in 16 bits.
LONG = {
    "8 heads of 64k": Shape(((65536,) * 8,), g=4, t=1, d=128),
    "32:1 beside 8 x 64k": Shape(((429_981, *(13_437,) * 7),), g=4, t=1, d=128),
}


@dataclass(frozen=True)
class Cell:
    """One kernel over one shape."""

    name: str
    operands: Operands
    layers: int


def cells(dtype: str, kernels: Sequence[str] = KERNELS, small: bool = False, shapes: str = "") -> Iterator[Cell]:
    """The kernels over their named shapes with one query a row; `shapes` is a part of the names wanted, `small` spares a CPU.

    Raises:
        ValueError: an unknown kernel, or no shape of that name; lists those there are.
    """
    if wrong := set(kernels) - set(KERNELS):
        raise ValueError(f"unknown kernels {', '.join(sorted(wrong))}; there are {', '.join(KERNELS)}")
    ragged = {name: shape for name, shape in ALL.items() if shape.t == 1} | ({} if small else LONG)
    sources = {"ragged": (ragged, regions), "gather": (LISTS, lists), "codes": (CODES, codes)}
    every = {f"{kernel}: {name}": (shape, sources[kernel][1]) for kernel in kernels for name, shape in sources[kernel][0].items()}
    for name, (shape, make) in named(every, shapes).items():
        made = make(shape, dtype)
        if not small or made.read < 1 << 22:
            yield Cell(name, made, 1 if small else min(32, -(-BEYOND_CACHE // made.read)))


def kernels(
    dtype: str, rounds: int, *, impl: str | None = None, kinds: Sequence[str] = KERNELS, shapes: str = "", small: bool = False,
    done: Callable = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Numbers and times of every kernel.

    Args:
        dtype: of queries, keys and values.   rounds: counted runs; medians are reported.
        impl: which implementation; None lets the library choose. "triton" needs an NVIDIA GPU and the gpu extra, "mosaic" a Hopper
            GPU and kinds=("ragged",).
        kinds: of KERNELS.   shapes: part of the names of the shapes wanted.
        small: only shapes that a CPU takes, one layer each.

    Returns:
        conditions; copy_gb_per_s; cells by kernel and shape: right (error within TOLERANCE), error (largest, relative to its row's
        scale, against float64; None if not a number), ms of a layer, gb_per_s, share of the copy bandwidth, dense_ms (XLA over
        everything), full_ms (our kernel over everything), speed_up, speed_up_over_full and fewer_bytes (those over ours).

    Raises:
        ValueError: an implementation that is unknown or cannot run here, with why; an unknown shape.
    """
    copied = _copy_bandwidth(rounds, 1 << (24 if small else 30))
    found = {}
    for cell in cells(dtype, kinds, small, shapes):
        found[cell.name] = _measure(cell, rounds, impl, copied)
        done(1)
    if not found:
        raise ValueError(f"no shape with {shapes!r} in its name is small enough for `small`")
    words = f"impl {impl or 'of the library'}; times of one layer of up to 32 in a program; copies count bytes read and written"
    return conditions("kernels", dtype, words) | {"device": jax.devices()[0].device_kind, "copy_gb_per_s": copied, "cells": found}


def _measure(cell: Cell, rounds: int, impl: str | None, copied: float) -> dict[str, Any]:
    made = cell.operands
    error = float(np.max([_error(*pair) for pair in zip(made.call(*made.arrays, impl), made.exact(), strict=True)]))
    right = error <= TOLERANCE[str(made.arrays[0].dtype)]
    work = {"run": (made.call, made.arrays), "dense": (lambda *x: made.dense(*x[:-1]), made.whole), "full": (made.ours, made.pool)}
    ready = {name: _chained(call, arrays, impl, cell.layers) for name, (call, arrays) in work.items()}
    seconds = interleaved(ready, rounds, streak=STREAK)
    each = {name: summary(values)["median"] / cell.layers for name, values in seconds.items()}
    rate = made.read / each["run"] / 1e9
    return {
        "right": right, "error": error if np.isfinite(error) else None,
        "ms": 1e3 * each["run"], "gb_per_s": rate, "share": rate / copied, "dense_ms": 1e3 * each["dense"],
        "full_ms": 1e3 * each["full"], "speed_up": each["dense"] / each["run"], "speed_up_over_full": each["full"] / each["run"],
        "fewer_bytes": made.full / made.read,
    }  # fmt: skip


def _chained(call: Callable, arrays: tuple, impl: str | None, layers: int) -> Callable[[], Any]:
    """Calls on copies of the operands in one program, each after the one before, as in a decode step."""

    def run(copies):
        found, last = [], jnp.float32(0)
        for q, *rest in copies:
            found.append(call(q + (0 * last).astype(q.dtype), *rest, impl))
            last = jnp.nan_to_num(jax.tree.leaves(found[-1])[0].reshape(-1)[0])
        return found

    compiled, copies = jax.jit(run), [jax.tree.map(jnp.copy, arrays) for _ in range(layers)]
    return lambda: compiled(copies)


def _error(got: Any, exact: np.ndarray) -> float:
    """Largest error relative to its row's scale; nan where infinities differ."""
    got = np.asarray(got, np.float64)
    if not np.array_equal(np.isinf(got), np.isinf(exact)):
        return float("nan")
    got, exact = (np.where(np.isinf(x), 0.0, x) for x in (got, exact))
    scale = np.maximum(np.abs(exact).max(-1, keepdims=True), 1e-3)
    return float(np.max(np.abs(got - exact) / scale))


def _copy_bandwidth(rounds: int, size: int) -> float:
    """GB/s of x + 1 over `size` bytes, read and written."""
    x = jnp.zeros(size // 4, jnp.float32)
    run = jax.jit(lambda x: x + 1)
    return 2 * size / summary(interleaved({"copy": lambda: run(x)}, rounds)["copy"])["median"] / 1e9
