"""How the time of ragged attention grows with the slots in use, and what skew does to it."""

from collections.abc import Callable
from typing import Any

import numpy as np

from experiments.bench import STREAK, conditions, interleaved, summary
from experiments.bench.attention import LAYERS, ragged
from kvjax.kernels.ragged_attention.shapes import Shape

#: Slots in use over all heads, and the heads of one layer of Llama 3.1 8B.
USED, HEADS = (4096, 8192, 16384, 32768, 65536), 8
#: Shares of the heads at 32:1, beside equal ones.
SKEWED = np.array([32, 8, 4, 2, 2, 1, 1, 1]) / 51


def growth(dtype: str, rounds: int, *, impl: str | None = None, done: Callable = lambda count: None) -> dict[str, Any]:
    """Time equal and skewed regions of the same slots in use.

    Returns:
        conditions; ms by slots in use, equal and 32:1; the least-squares line through the equal ones, its coefficient of
        determination, and skewed / equal at each size.

    Raises:
        ValueError: unknown implementation.
    """
    shares = {"equal": np.full(HEADS, 1 / HEADS), "32:1": SKEWED}
    runs = {(kind, used): ragged(_shape(share, used), dtype, LAYERS, impl) for kind, share in shares.items() for used in USED}
    seconds = interleaved(runs, rounds, streak=STREAK, done=done)
    found = {at: 1e3 * summary(values)["median"] for at, values in seconds.items()}
    ms = {kind: {used: found[kind, used] for used in USED} for kind in shares}
    slope, intercept, determined = line(np.array(USED), np.array(list(ms["equal"].values())))
    words = f"{HEADS} heads of 128, 4 queries a head, times of {LAYERS} layers in a program"
    return conditions("growth", dtype, words) | {
        "cells": ms,
        "fit": {"ms_per_1000_slots": 1000 * slope, "ms_of_none": intercept, "r2": determined},
        "ratios": {f"32:1 / equal, {used} slots": ms["32:1"][used] / ms["equal"][used] for used in USED},
    }


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float, float]:
    """Slope, intercept and coefficient of determination of the least-squares line."""
    slope, intercept = np.polyfit(x, y, 1)
    rest = y - slope * x - intercept
    return float(slope), float(intercept), float(1 - (rest**2).sum() / ((y - y.mean()) ** 2).sum())


def _shape(share: np.ndarray, used: int) -> Shape:
    lengths = (share * used).astype(int)
    lengths[0] += used - lengths.sum()
    return Shape((tuple(map(int, lengths)),), g=4, t=1, d=128)
