"""PyramidKV's linear layer budgets (arXiv 2406.02069), in the three forms that are in use."""

import numpy as np
from jaxtyping import Float, Int

from .exact_alloc import exact_alloc


def pyramid_floor(layers: int, budget: int, n: int, *, window: int, beta: int) -> Int[np.ndarray, "l"]:
    """The release: past slots a head of each layer, the window not counted. Floors make the total exceed layers * base.

    base = b - W; min = base // beta; max = 2 base - min; max >= n - W: max = n - W, min = 2 base - max;
    step = (max - min) // (L - 1); past_l = max - l step. n < b: everything (n). b <= n < 2 base: base.
    """
    base = budget - window
    if n < budget:
        return np.full(layers, n)
    if n < 2 * base:
        return np.full(layers, base)
    low = base // beta
    high = 2 * base - low
    if high >= n - window:
        high, low = n - window, 2 * base - (n - window)
    step = (high - low) // (layers - 1) if layers > 1 else 0
    return high - np.arange(layers) * step


def pyramid_line(layers: int, base: int, room: int, beta: int) -> Float[np.ndarray, "l"]:
    """The same line with steps that are not floored: from max down to min, mean base."""
    low = base // beta
    high = 2 * base - low
    if high >= room:
        high, low = room, 2 * base - room
    return np.linspace(high, low, layers) if layers > 1 else np.array([float(base)])


def pyramid_exact(layers: int, budget: int, n: int, *, window: int, beta: int) -> Int[np.ndarray, "l"]:
    """Slots a head of each layer, the window counted, that sum to layers * budget: W + exact_alloc of the line.

    Where we differ from the release: equal-memory comparisons need equal totals. budget <= W or n < 2 base: uniform.
    """
    base, room = budget - window, n - window
    if budget <= window or n < min(budget, 2 * base):
        return np.full(layers, min(budget, n))
    line = pyramid_line(layers, base, room, beta)
    none, full = np.zeros(layers, np.int64), np.full(layers, room)
    return window + exact_alloc(line, layers * base, none, full)


def pyramid_rounded(layers: int, share: float, n: int, *, window: int, beta: float) -> Int[np.ndarray, "l"]:
    """The toolkit form: slots a head of each layer, the window inside, halves rounded to even.

    b = n share; min = b / beta; max = 2 b - min; max >= n - W: max = n - W, min = 2 b - max;
    unless n >= max >= min >= W: round(b) everywhere; else round(max - l step).
    """
    b = n * share
    low = b / beta
    high = 2 * b - low
    if high >= n - window:
        high, low = n - window, 2 * b - (n - window)
    if not n >= high >= low >= window:
        return np.full(layers, round(b))
    step = (high - low) / (layers - 1) if layers > 1 else 0.0
    return np.array([round(high - layer * step) for layer in range(layers)])
