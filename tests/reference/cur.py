"""CUR: approximate leverage of keys and values inside short windows (CurDKV, arXiv 2509.15038).

No chapter describes it; the formula is the one that reproduces the recorded scores to float32.
Readings: windows are cut from position 0, the last one may be short and is normalised over its own tokens, so it weighs
more; the sinks take part in windows and in the total before they are lifted to 1.
"""

import numpy as np
from jaxtyping import Float


def row_leverage(x: Float[np.ndarray, "n d"], window: int | None) -> Float[np.ndarray, "n"]:
    """||x_j||^2 over the sum of the squared norms in its window; over the whole prompt for None."""
    squared = (x.astype(np.float64) ** 2).sum(axis=-1)
    size = len(x) if window is None else window
    return np.concatenate([squared[i : i + size] / squared[i : i + size].sum() for i in range(0, len(x), size)])


def cur(
    k: Float[np.ndarray, "h n d"], v: Float[np.ndarray, "h n d"], *, sinks: int = 4, window: int | None = 16, kind: str = "product"
) -> Float[np.ndarray, "h n"]:
    """u = l_k l_v, normalised to sum 1 over the prompt; sinks get 1. `kind`: product, mean, key or value."""
    out = np.zeros(k.shape[:2])
    for h in range(len(k)):
        l_k, l_v = row_leverage(k[h], window), row_leverage(v[h], window)
        u = {"product": l_k * l_v, "mean": (l_k + l_v) / 2, "key": l_k, "value": l_v}[kind]
        out[h] = u / u.sum()
    out[:, :sinks] = 1.0
    return out
