"""Tables of KVTC: principal components of all heads of a layer, and the bits of their runs by dynamic programming."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jaxtyping import Array, Float, Float16, Float32

from kvjax.calibrate.codebooks import silent
from kvjax.codec.component_groups import BITS, OVERHEAD, codes_of, numbers_of, run_range
from kvjax.evidence import RawKeys
from kvjax.prefill.run import prefill
from kvjax.protocols import LanguageModel

#: Components that a run may have.
SIZES = (1, 16, 64, 256, 1024)


class Runs(NamedTuple):
    """sizes, bits: components and bits of every run, in order; what follows the last is not stored.   loss, cost: of all."""

    sizes: tuple[int, ...]
    bits: tuple[int, ...]
    loss: float
    cost: int


def cached_tokens(
    lm: LanguageModel, prompts: Sequence[Sequence[int]], *, sinks: int, progress: Callable[[int, int], None] = silent
) -> tuple[Float32[np.ndarray, "l n p"], Float32[np.ndarray, "l n p"]]:
    """(keys before the rotary embedding, values) of all tokens but the first `sinks` of each prompt, heads behind each other."""
    found = []
    for ids in prompts:
        (row,) = prefill(lm, list(ids), needs=frozenset({RawKeys()})).rows
        sides = [e.of(RawKeys()) for e in row.evidence], row.v
        found.append([np.stack([_tokens(x, sinks, len(ids)) for x in side]) for side in sides])
        progress(len(found), len(prompts))
    return tuple(np.concatenate(side, 1) for side in zip(*found, strict=True))


def _tokens(x: Float[Array, "b h n d"], first: int, end: int) -> Float32[np.ndarray, "n p"]:
    return np.swapaxes(np.asarray(x[0, :, first:end], np.float32), 0, 1).reshape(end - first, -1)


def principal(x: Float32[np.ndarray, "n p"]) -> tuple[Float32[np.ndarray, " p"], Float16[np.ndarray, "p r"]]:
    """(μ, V) with the columns of V by decreasing variance of Vᵀ(x - μ), each with its largest number above 0.

    r = min(p, n - 1): fewer tokens than channels span no more. V is float16, as it is kept.
    """
    mean = x.mean(0, dtype=np.float64)
    centred = x - mean
    _, vectors = np.linalg.eigh(centred.T @ centred)
    basis = vectors[:, ::-1][:, : max(1, min(x.shape[1], len(x) - 1))]
    largest = np.take_along_axis(basis, np.abs(basis).argmax(0)[None], 0)
    return mean.astype(np.float32), (basis * np.where(largest < 0, -1, 1)).astype(np.float16)


@partial(jax.jit, static_argnames="size")
def _run_losses(y: Float32[Array, "n r"], *, size: int) -> Float32[Array, "t s"]:
    """Σ_tokens ||y_run - y^_run||² of runs of `size` components from every start on, for every type that is stored."""

    def of_start(start):
        block = lax.dynamic_slice_in_dim(y, start, size, 1)
        low, high = block.min(1, keepdims=True), block.max(1, keepdims=True)
        coded = [_coded(block, *run_range(low, high, jnp.int32(b)), jnp.int32(b)) for b in BITS[1:]]
        return jnp.stack([((block - x) ** 2).sum() for x in coded])

    return lax.map(of_start, jnp.arange(y.shape[1] - size + 1)).T


def _coded(y: Array, step: Array, shift: Array, bits: Array) -> Array:
    return numbers_of(codes_of(y, step, shift, bits), step, shift, bits)


def run_losses(y: Float32[np.ndarray, "n r"], sizes: Sequence[int] = SIZES) -> Float[np.ndarray, "t s r"]:
    """Mean squared error a token of every type, size and first component of a run; inf where a run would not fit.

    Types are `kvjax.codec.component_groups.BITS`, coded as they will be.
    """
    rank = y.shape[1]
    found = np.full((len(BITS), len(sizes), rank), np.inf)
    sums = np.concatenate([[0.0], np.cumsum((y.astype(np.float64) ** 2).mean(0))])
    for s, size in enumerate(sizes):
        if size <= rank:
            found[0, s, : rank - size + 1] = sums[size:] - sums[:-size]
            found[1:, s, : rank - size + 1] = np.asarray(_run_losses(jnp.asarray(y), size=size)) / len(y)
    return found


def best_runs(
    loss: Float[np.ndarray, "t s r"], budget: int, *, sizes: Sequence[int] = SIZES, bits: Sequence[int] = BITS,
    overhead: int = OVERHEAD,
) -> Runs:  # fmt: skip
    """The runs of least loss whose cost is at most `budget` bits: dynamic programming over the ordered components.

    best[i, c] = min over types t and sizes s of best[i - s, c - cost(t, s)] + loss[t, s, i - s], cost = s bits_t + overhead, or 0
    where nothing is stored. Ties go to the cheaper, then to the type and size that come first. Neighbouring runs of nothing are
    one, and the last is left out.

    Args:
        loss: of type t for a run of sizes[s] components from i on.   budget: bits of a token.
        sizes, bits, overhead: components a run may have, bits of a type's code (the first has none), and of a run's numbers.

    Source: KVTC, arXiv 2511.01815, section 3.
    """
    rank = loss.shape[-1]
    costs = np.array([[n * b + overhead if b else 0 for n in sizes] for b in bits])
    best, taken = np.full((rank + 1, budget + 1), np.inf), np.zeros((rank + 1, budget + 1), np.int64)
    best[0] = 0.0
    for i in range(1, rank + 1):
        for which, (t, s) in enumerate(np.ndindex(costs.shape)):
            n, cost = sizes[s], costs[t, s]
            if n <= i and cost <= budget:
                new = best[i - n, : budget + 1 - cost] + loss[t, s, i - n]
                better = new < best[i, cost:]
                best[i, cost:][better], taken[i, cost:][better] = new[better], which
    return _traced(best, taken, costs, sizes, bits)


def _traced(best: np.ndarray, taken: np.ndarray, costs: np.ndarray, sizes: Sequence[int], bits: Sequence[int]) -> Runs:
    """The runs that lead to the least loss at the least cost."""
    i, left = len(best) - 1, int(best[-1].argmin())
    runs, spent = [], 0
    while i:
        t, s = np.unravel_index(taken[i, left], costs.shape)
        if runs and not bits[t] and not runs[-1][1]:
            runs[-1] = (runs[-1][0] + sizes[s], 0)
        else:
            runs.append((sizes[s], bits[t]))
        i, left, spent = i - sizes[s], left - int(costs[t, s]), spent + int(costs[t, s])
    runs.reverse()
    if runs and not runs[-1][1]:
        runs.pop()
    lengths, widths = zip(*runs, strict=True) if runs else ((), ())
    return Runs(lengths, widths, float(best[-1].min()), spent)


def kvtc_tables(
    keys: Float32[np.ndarray, "l n p"], values: Float32[np.ndarray, "l n p"], *, ratios: Sequence[int], measured: int,
    progress: Callable[[int, int], None] = silent,
) -> dict[str, np.ndarray]:  # fmt: skip
    """A basis of every layer, and for each ratio the runs of its components.

    Args:
        keys, values: `cached_tokens`.   ratios: 16-bit numbers over codes; a token gets 16 p / ratio bits.
        measured: tokens, evenly spaced, on which losses are measured.   progress: called with (layers done, layers in all).

    Returns:
        For keys and values "_mean" float32 [l, p] and "_basis" float16 [l, p, r]; for each ratio "_sizes_" and "_bits_" uint16 and
        uint8 [l, g], 0 behind a layer's last run.
    Source: KVTC, arXiv 2511.01815, section 3. Differs: each layer has a basis and bits of its own.
    """
    tables, done = {}, 0
    for side, tokens in (("keys", keys), ("values", values)):
        fitted, runs = [], {ratio: [] for ratio in ratios}
        for x in tokens:
            fitted.append(principal(x))
            mean, basis = fitted[-1]
            some = x[np.linspace(0, len(x) - 1, min(measured, len(x))).astype(int)]
            loss = run_losses((some - mean) @ basis.astype(np.float32))
            for ratio in ratios:
                runs[ratio].append(best_runs(loss, 16 * x.shape[1] // ratio))
            progress(done := done + 1, len(keys) + len(values))
        tables |= _side_tables(side, fitted, runs)
    return tables


def _side_tables(side: str, fitted: list[tuple[np.ndarray, np.ndarray]], runs: dict[int, list[Runs]]) -> dict[str, np.ndarray]:
    rank = max(sum(of_layer.sizes) for of_ratio in runs.values() for of_layer in of_ratio)
    tables = {f"{side}_mean": np.stack([mean for mean, _ in fitted]), f"{side}_basis": np.stack([v[:, :rank] for _, v in fitted])}
    for ratio, of_layers in runs.items():
        most = max(len(of_layer.sizes) for of_layer in of_layers)

        def pad(x, most=most):
            return np.pad(x, (0, most - len(x)))

        tables[f"{side}_sizes_{ratio}"] = np.stack([pad(r.sizes) for r in of_layers]).astype(np.uint16)
        tables[f"{side}_bits_{ratio}"] = np.stack([pad(r.bits) for r in of_layers]).astype(np.uint8)
    return tables
