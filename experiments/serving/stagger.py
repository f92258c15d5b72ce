"""FastDecode's start times: sequences begin one after the other, so that the sum of their lengths, the host's work, stays level.

Source: FastDecode, arXiv 2403.11421, section 4.2. Differs: every sequence has one final length, and is followed by a new one.
"""

import numpy as np
from jaxtyping import Int


def staggered(batch: int, length: int, every: int) -> Int[np.ndarray, " s"]:
    """First steps of `batch` sequences of final length `length` in micro-batches started every `every` steps, as evenly as it goes.

    ⌈length / every⌉ micro-batches are under way at a time; the first ones hold one sequence more where they do not share evenly.
    """
    if min(batch, length, every) < 1:
        raise ValueError(f"batch, length and every are at least 1; got {batch}, {length}, {every}")
    groups = min(-(-length // every), batch)
    sizes = [batch // groups + (i < batch % groups) for i in range(groups)]
    return np.repeat(np.arange(groups) * every, sizes)


def together(batch: int) -> Int[np.ndarray, " s"]:
    """All at step 0."""
    return np.zeros(batch, np.int64)


def lengths(starts: Int[np.ndarray, " s"], length: int, step: int, period: int | None = None) -> Int[np.ndarray, " s"]:
    """Length of each sequence during a step: 1 at its first, 0 before; every `period` (default: `length`) a new one begins."""
    period = length if period is None else period
    if period < length:
        raise ValueError(f"a sequence of {length} tokens is not over after {period} steps")
    since = step - np.asarray(starts)
    at = since % period + 1
    return np.where((since < 0) | (at > length), 0, at)


def load(starts: Int[np.ndarray, " s"], length: int, steps: int, period: int | None = None) -> Int[np.ndarray, " t"]:
    """Sum of lengths at each of `steps` steps: what the host attends to."""
    return np.array([lengths(starts, length, step, period).sum() for step in range(steps)])


def steady(batch: int, length: int, every: int) -> Int[np.ndarray, " t"]:
    """The sums over one period once every sequence is under way."""
    starts = staggered(batch, length, every)
    period = every * -(-length // every)
    first = int(starts.max(initial=0))
    return load(starts, length, first + period, period)[first:]
