"""A model's projections for a few rows: every weight once, by each implementation, beside a plain sum over the same weights."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from experiments.bench import STREAK, conditions, interleaved, summary
from kvjax.kernels.linear import linear as multiply
from models import weights


def linear(
    lm: Any, rows: Sequence[int], rounds: int, *, impls: Sequence[str], done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time all weight matrices of a model on random rows; a layer's come after each other, as in a decode step.

    Args:
        lm: the language model.   rows: batch sizes.   rounds: times each piece of work runs; medians are reported.
        impls: implementations.

    Returns:
        conditions; seconds by rows and implementation, and of the sum; the sum's time over each one's.

    Raises:
        ValueError: an implementation that is unknown or does not take so many rows.
    """
    matrices = [x for x in jax.tree.leaves(lm.params) if x.ndim == 2]
    cells = {str(n): _measure(matrices, n, rounds, impls, done) for n in rows}
    return conditions("linear", str(matrices[0].dtype), f"{lm.name}, {weights.nbytes(matrices)} bytes") | {"cells": cells}


def _measure(matrices: Sequence[jax.Array], rows: int, rounds: int, impls: Sequence[str], done: Callable) -> dict[str, Any]:
    inputs = {w.shape[1]: jax.random.normal(jax.random.key(0), (rows, w.shape[1]), w.dtype) for w in matrices}
    work = {impl: _chain(matrices, inputs, impl) for impl in impls} | {"sum": _sum(matrices)}
    seconds = {name: summary(times) for name, times in interleaved(work, rounds, streak=STREAK, done=done).items()}
    share = {name: seconds["sum"]["median"] / times["median"] for name, times in seconds.items() if name != "sum"}
    return {"seconds": seconds, "share_of_plain_sum": share}


def _chain(matrices: Sequence[jax.Array], inputs: dict[int, jax.Array], impl: str) -> Callable[[], Any]:
    def run(matrices, inputs):
        last = jnp.float32(0)
        for weight in matrices:  # each waits for the one before, as layers do
            x = inputs[weight.shape[1]] + (0 * last).astype(weight.dtype)
            last = lax.optimization_barrier(multiply(x, weight, dtype=jnp.float32, impl=impl))[0, 0]
        return last

    compiled = jax.jit(run)
    return lambda: compiled(matrices, inputs)


def _sum(matrices: Sequence[jax.Array]) -> Callable[[], Any]:
    compiled = jax.jit(lambda matrices: sum(x.sum(dtype=jnp.float32) for x in matrices))
    return lambda: compiled(matrices)
