"""Means with 95% intervals, one rule for every table and page: Wilson for scores from 0 to 1, Student's t for real values."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from scipy.special import stdtrit


@dataclass(frozen=True)
class Estimate:
    """A mean, its 95% interval and the number of values."""

    mean: float
    low: float
    high: float
    count: int


def share(scores: Sequence[float]) -> Estimate:
    """Mean of scores from 0 to 1 with Wilson's interval, which is honest at 0 and at 1: five right of five give [0.57, 1].

    (p + z²/2n ± z √(p(1 - p)/n + z²/4n²)) / (1 + z²/n), z = 1.96. A score in between (half of what was asked for) varies
    less than right and wrong of the same mean do, for which p(1 - p) is the variance: its interval is at least wide enough.

    Source: Wilson (1927), Probable inference, the law of succession, and statistical inference.
    """
    return _wilson(math.fsum(scores) / len(scores), len(scores), 1.96)


def _wilson(p: float, n: int, z: float) -> Estimate:
    middle = (p + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * math.sqrt(max(0.0, p * (1 - p)) / n + z * z / (4 * n * n))
    return Estimate(p, max(0.0, middle - half), min(1.0, middle + half), n)


def share_difference(mine: Sequence[float], other: Sequence[float]) -> Estimate:
    """Mean of (mine - other) of scores from 0 to 1, prompt by prompt, with Newcombe's interval.

    With d = p₁ - p₂, the two Wilson intervals [l, u] and the correlation φ of the pairs (0 where one side never varies):
    lower = d - √((p₁ - l₁)² - 2φ (p₁ - l₁)(u₂ - p₂) + (u₂ - p₂)²), upper with l and u exchanged. It has a width even where
    all pairs agree.

    Source: Newcombe (1998), Improved confidence intervals for the difference between binomial proportions based on paired
    data, method 10 without the continuity correction.
    """
    n = len(mine)
    return newcombe(math.fsum(mine) / n, math.fsum(other) / n, correlation(mine, other), n)


def newcombe(p: float, q: float, phi: float, n: int, z: float = 1.96) -> Estimate:
    """The interval of `share_difference` from both means, their correlation and the number of pairs, at z deviations."""
    a, b = _wilson(p, n, z), _wilson(q, n, z)
    below = _joined(a.mean - a.low, b.high - b.mean, phi)
    above = _joined(a.high - a.mean, b.mean - b.low, phi)
    d = a.mean - b.mean
    return Estimate(d, max(-1.0, d - below), min(1.0, d + above), n)


def mean_of(estimates: Sequence[Estimate]) -> Estimate:
    """Mean of the means of independent estimates (tasks); its limits are as far as the root of the mean squares says.

    lower = m - √Σ(mₖ - lₖ)² / K, upper = m + √Σ(uₖ - mₖ)² / K.

    Source: Zou and Donner (2008), Construction of confidence limits about effect measures (MOVER).
    """
    k = len(estimates)
    m = math.fsum(e.mean for e in estimates) / k
    below = math.hypot(*(e.mean - e.low for e in estimates)) / k
    above = math.hypot(*(e.high - e.mean for e in estimates)) / k
    return Estimate(m, m - below, m + above, sum(e.count for e in estimates))


def proportion(hits: Sequence[bool]) -> Estimate:
    """Share of hits; see `share`."""
    return share([float(hit) for hit in hits])


def average(values: Sequence[float], units: Sequence[int] | None = None) -> Estimate:
    """Mean with Student's t interval; of one unit the interval is not known (NaN).

    Values of one unit move together (stretches that share tokens). Of G units, with m the mean of all n values,

        half = t(G - 1) √(G / (G - 1) Σ_g (Σ_{i in g} (x_i - m))²) / n

    which is t(n - 1) s / √n where every value is a unit of its own, as it is without `units`.

    Source: Liang and Zeger (1986), Longitudinal data analysis using generalized linear models.
    """
    mean, error, count = math.fsum(values) / len(values), *standard_error(values, units)
    half = float(stdtrit(count - 1, 0.975)) * error if count > 1 else math.nan
    return Estimate(mean, mean - half, mean + half, len(values))


def standard_error(values: Sequence[float], units: Sequence[int] | None = None) -> tuple[float, int]:
    """The standard error of `average`, and the number of units; NaN of one."""
    mean = math.fsum(values) / len(values)
    sums: dict[int, list[float]] = {}
    for unit, value in zip(range(len(values)) if units is None else units, values, strict=True):
        sums.setdefault(unit, []).append(value - mean)
    if len(sums) == 1:
        return math.nan, 1
    squares = math.fsum(math.fsum(of) ** 2 for of in sums.values())
    return math.sqrt(len(sums) / (len(sums) - 1) * squares) / len(values), len(sums)


def _joined(x: float, y: float, phi: float) -> float:
    return math.sqrt(max(0.0, x * x - 2 * phi * x * y + y * y))


def correlation(x: Sequence[float], y: Sequence[float]) -> float:
    """Pearson's of pairs; 0 where one side never varies."""
    mx, my = math.fsum(x) / len(x), math.fsum(y) / len(y)
    sx, sy = math.hypot(*(a - mx for a in x)), math.hypot(*(b - my for b in y))
    return 0.0 if min(sx, sy) < 1e-12 else math.fsum((a - mx) * (b - my) for a, b in zip(x, y, strict=True)) / (sx * sy)
