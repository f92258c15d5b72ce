"""Means with 95% intervals: of right-or-wrong scores, of real values, and of either by resampling prompts."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

#: 97.5% quantiles of Student's t for 1 .. 30 degrees of freedom; 1.96 + 2.5 / df is within 0.003 beyond.
_T = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip


@dataclass(frozen=True)
class Estimate:
    """A mean, its 95% interval and the number of values."""

    mean: float
    low: float
    high: float
    count: int


def proportion(hits: Sequence[bool]) -> Estimate:
    """Share of hits with Wilson's score interval (Wilson, 1927), which is honest at 0 and at 1."""
    n, z = len(hits), 1.96
    p = sum(hits) / n
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half), n)


def share(scores: Sequence[float]) -> Estimate:
    """Mean of scores from 0 to 1: a proportion where every score is 0 or 1, else an average."""
    return proportion([bool(x) for x in scores]) if set(scores) <= {0.0, 1.0} else average(scores)


def average(values: Sequence[float]) -> Estimate:
    """Mean with Student's t interval; of one value the interval is not known (NaN)."""
    n = len(values)
    mean = math.fsum(values) / n
    if n == 1:
        return Estimate(mean, math.nan, math.nan, 1)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (n - 1) / n)
    half = spread * (_T[n - 2] if n - 1 <= len(_T) else 1.96 + 2.5 / (n - 1))
    return Estimate(mean, mean - half, mean + half, n)


def bootstrap(values: Sequence[float], *, resamples: int = 2000, seed: int = 0) -> Estimate:
    """Mean with its percentile interval: the 2.5% and 97.5% quantiles of the means of resampled values (Efron, 1979).

    Equal values give an interval without width: what was never seen to vary is not resampled either (see `proportion`).

    Args:
        values: one a prompt; of one value the interval is not known (NaN).
        resamples: how many samples of as many values, drawn with replacement.
        seed: the same values give the same interval.
    """
    x = np.asarray(values, np.float64)
    if len(x) == 1:
        return Estimate(float(x[0]), math.nan, math.nan, 1)
    means = x[np.random.default_rng(seed).integers(0, len(x), (resamples, len(x)))].mean(1)
    low, high = np.quantile(means, (0.025, 0.975))
    return Estimate(math.fsum(x) / len(x), float(low), float(high), len(x))
