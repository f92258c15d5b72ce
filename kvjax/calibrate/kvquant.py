"""Tables of KVQuant: thresholds of key channels, and levels where the loss feels them most."""

from collections.abc import Callable, Sequence

import numpy as np
from jaxtyping import Bool, Float, Float32

from kvjax.calibrate.codebooks import silent
from kvjax.calibrate.gradients import CacheGradients

#: Updates of the levels at most.
_UPDATES = 50


def thresholds(k: Float[np.ndarray, "*a n d"], kept: float) -> tuple[Float32[np.ndarray, "*a d"], Float32[np.ndarray, "*a d"]]:
    """(low, high) of every channel: its (1 - s) / 2 and (1 + s) / 2 quantiles over tokens, s the share `kept` inside."""
    low, high = np.quantile(k, [(1 - kept) / 2, (1 + kept) / 2], axis=-2)
    return low.astype(np.float32), high.astype(np.float32)


def fit_levels(x: Float[np.ndarray, " n"], weight: Float[np.ndarray, " n"], bits: int) -> Float32[np.ndarray, " c"]:
    """2^b ascending levels that minimise Σ w_i (x_i - level)²: a weighted k-means on a line, from the quantiles of the weight.

    Levels nothing is nearest to stay where they are. Weights that are all 0 count as 1 each.
    """
    order = np.argsort(x, kind="stable")
    x, weight = x[order].astype(np.float64), weight[order].astype(np.float64)
    weight = weight if weight.sum() > 0 else np.ones_like(weight)
    mass, moment = (np.concatenate([[0.0], np.cumsum(y)]) for y in (weight, weight * x))
    share = (np.arange(1 << bits) + 0.5) / (1 << bits)
    levels = x[np.minimum(np.searchsorted(mass[1:], share * mass[-1]), len(x) - 1)]
    for _ in range(_UPDATES):
        ends = np.concatenate([[0], np.searchsorted(x, (levels[1:] + levels[:-1]) / 2), [len(x)]])
        held = np.diff(mass[ends])
        new = np.where(held > 0, np.diff(moment[ends]) / np.where(held > 0, held, 1), levels)
        if (new == levels).all():
            break
        levels = new
    return np.sort(levels).astype(np.float32)


def matched(levels: Float[np.ndarray, " c"], x: Float[np.ndarray, " n"]) -> Float32[np.ndarray, " c"]:
    """Levels moved so that decoded numbers have the mean and the deviation of x: c s1 / s2 + (m1 - m2 s1 / s2)."""
    decoded = levels[np.searchsorted((levels[1:] + levels[:-1]) / 2, x)].astype(np.float64)
    ratio = x.std() / decoded.std() if decoded.std() > 0 else 1.0
    return (levels * ratio + x.mean() - decoded.mean() * ratio).astype(np.float32)


def normalised_keys(
    k: Float[np.ndarray, "h n d"], low: Float[np.ndarray, "h d"], high: Float[np.ndarray, "h d"]
) -> tuple[Float[np.ndarray, "h n d"], Bool[np.ndarray, "h n d"]]:
    """(keys in the range of their channel, which are inside it)."""
    offset, spread = ((high + low) / 2)[:, None], ((high - low) / 2)[:, None]
    x = np.where(spread > 0, (k - offset) / np.where(spread > 0, spread, 1), 0)
    return x, np.abs(x) <= 1


def normalised_values(v: Float[np.ndarray, "h n d"], each: int) -> tuple[Float[np.ndarray, "h n d"], Bool[np.ndarray, "h n d"]]:
    """(values in the range of their token without its `each` least and greatest, which are inside it)."""
    ordered = np.sort(v, -1)
    low, high = ordered[..., each, None], ordered[..., -1 - each, None]
    offset, spread = (high + low) / 2, (high - low) / 2
    x = np.where(spread > 0, (v - offset) / np.where(spread > 0, spread, 1), 0)
    return x, (v >= low) & (v <= high)


def kvquant_tables(
    found: CacheGradients, *, bits: Sequence[int], kept: float, each: int, progress: Callable[[int, int], None] = silent
) -> dict[str, np.ndarray]:
    """Thresholds and levels of every layer, levels weighted with squared gradients of what is no outlier.

    Args:
        bits: of the codes there shall be levels for.   kept: share of a key channel inside its thresholds.
        each: outliers on either side of a value.   progress: called with (layers done, layers in all).

    Returns:
        "low", "high" [l, h, d]; for each b "levels_b" and "matched_b" [l, 2, 2^b], keys' then values'. Float16 thresholds, float32
        levels.
    Source: KVQuant, arXiv 2401.18079, sections 3.2, 3.3 and 3.6.
    """
    low, high = (x.astype(np.float16) for x in thresholds(found.k, kept))
    tables = {f"{name}_{b}": [] for b in bits for name in ("levels", "matched")}
    for layer in range(len(found.k)):
        keys = normalised_keys(found.k[layer], *(x[layer].astype(np.float32) for x in (low, high)))
        values = normalised_values(found.v[layer], each)
        squares = (found.dk[layer] ** 2, found.dv[layer] ** 2)
        sides = [(x[inside], w[inside]) for (x, inside), w in zip((keys, values), squares, strict=True)]
        for b in bits:
            levels = [fit_levels(x, np.nan_to_num(w), b) for x, w in sides]
            tables[f"levels_{b}"].append(levels)
            tables[f"matched_{b}"].append([matched(c, x) for c, (x, _) in zip(levels, sides, strict=True)])
        progress(layer + 1, len(found.k))
    return {"low": low, "high": high} | {name: np.asarray(x, np.float32) for name, x in tables.items()}
