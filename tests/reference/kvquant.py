"""KVQuant: non-uniform levels in a channel's or a token's range, outliers exact.

off = (hi + lo) / 2, rng = (hi - lo) / 2; code = nearest level to (x - off) / rng; x^ = level rng + off.

Source: KVQuant, arXiv 2401.18079, and its released quantiser. Differs: at most m outliers a token and head, as ours.
"""

import numpy as np
from jaxtyping import Bool, Float, Int


def codes(x: Float[np.ndarray, "n d"], levels: Float[np.ndarray, "c"]) -> Int[np.ndarray, "n d"]:
    """The nearest level, ties to the lower."""
    return np.abs(x[..., None] - levels).argmin(-1)


def keys(
    x: Float[np.ndarray, "n d"], levels: np.ndarray, low: Float[np.ndarray, "d"], high: Float[np.ndarray, "d"], most: int,
    store: type[np.floating] = np.float16,
) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n d"]]:  # fmt: skip
    """(x^, which are exact): thresholds by channel."""
    off, rng = (high + low) / 2, (high - low) / 2
    inside = np.where(rng > 0, (x - off) / np.where(rng > 0, rng, 1), 0)
    out = np.zeros(x.shape, bool)
    for row, at in zip(out, np.abs(inside), strict=True):
        far = np.argsort(-at, kind="stable")[:most]
        row[far[at[far] > 1]] = True
    return np.where(out, x.astype(store), levels[codes(inside, levels)] * rng + off), out


def values(
    x: Float[np.ndarray, "n d"], levels: np.ndarray, each: int, store: type[np.floating] = np.float16
) -> tuple[Float[np.ndarray, "n d"], Bool[np.ndarray, "n d"]]:
    """(x^, which are exact): each token's own range, without its ends."""
    out = np.zeros(x.shape, bool)
    for row, at in zip(out, x, strict=True):
        row[np.argsort(at, kind="stable")[:each]] = row[np.argsort(-at, kind="stable")[:each]] = True
    low, high = np.where(out, np.inf, x).min(-1), np.where(out, -np.inf, x).max(-1)
    off, rng = (y.astype(store).astype(np.float64)[:, None] for y in ((high + low) / 2, (high - low) / 2))
    inside = np.where(rng > 0, (x - off) / np.where(rng > 0, rng, 1), 0)
    return np.where(out, x.astype(store), levels[codes(inside, levels)] * rng + off), out


def weighted_means(x: np.ndarray, w: np.ndarray, cluster: np.ndarray) -> np.ndarray:
    """One update of a weighted k-means: Σ w x / Σ w of each cluster."""
    return np.array([(w * x)[cluster == c].sum() / w[cluster == c].sum() for c in range(cluster.max() + 1)])


def matched(decoded: np.ndarray, mean: float, std: float) -> np.ndarray:
    """x' = x^ s1 / s2 + (m1 - m2 s1 / s2)."""
    ratio = std / decoded.std()
    return decoded * ratio + mean - decoded.mean() * ratio
