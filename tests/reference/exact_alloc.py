"""Integer budgets that sum exactly (spec: core methods 0.5)."""

import numpy as np
from jaxtyping import Float, Int


def exact_alloc(
    weights: Float[np.ndarray, "n"], total: int, lo: Int[np.ndarray, "n"], hi: Int[np.ndarray, "n"]
) -> Int[np.ndarray, "n"]:
    """y with sum y = total, lo <= y <= hi, near x = clip(lambda w, lo, hi): floors, then the largest remainders.

    total >= sum hi gives hi, total <= sum lo gives lo. Remainders go to the largest fractional parts, ties to the lower
    index. Weights are floored at 1e-12 of the largest; all-zero weights count as equal.
    """
    lo, hi = np.asarray(lo, np.int64), np.asarray(hi, np.int64)
    if total >= hi.sum():
        return hi.copy()
    if total <= lo.sum():
        return lo.copy()
    weights = np.asarray(weights, np.float64)
    weights = np.maximum(weights, 1e-12 * weights.max()) if weights.max() > 0 else np.ones_like(weights)
    return _round_down_then_up(_scaled(weights, total, lo, hi), total, hi)


def _scaled(weights: np.ndarray, total: int, lo: np.ndarray, hi: np.ndarray) -> np.ndarray:
    """The real-valued shares: bisection on lambda. Fixing clamped entries in turn can end infeasible."""
    low, high = 0.0, float((hi / weights).max()) + 1.0
    for _ in range(200):
        middle = (low + high) / 2
        if np.clip(middle * weights, lo, hi).sum() < total:
            low = middle
        else:
            high = middle
    return np.clip(high * weights, lo, hi)


def _round_down_then_up(x: np.ndarray, total: int, hi: np.ndarray) -> np.ndarray:
    y = np.floor(x + 1e-9).astype(np.int64)
    order = np.argsort(-np.round(x - y, 9), kind="stable")  # parts that tie in exact arithmetic tie here
    while y.sum() < total:
        for i in order:
            if y.sum() < total and y[i] < hi[i]:
                y[i] += 1
    return y
