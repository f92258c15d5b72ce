"""SimLayerKV (arXiv 2410.13846): a layer that looks only at the first and the last tokens keeps only those.

Readings of what the sources leave open:
- The row is the last query's softmax over all keys, its own included; its own column is then no "earlier token".
- The mean runs over every query head of the layer.
- A lazy layer keeps sinks + recent - 1 tokens, the newest among them; the mass was measured on one more.
"""

import numpy as np
from jaxtyping import Float, Int


def lazy_mass(row: Float[np.ndarray, "h g n"], *, sinks: int = 4, recent: int = 1024) -> float:
    """Mean over heads of the probability on the first `sinks` and the last `recent` of the n - 1 earlier tokens."""
    earlier = row[..., :-1]
    ends = earlier[..., :sinks].sum(axis=-1) + earlier[..., earlier.shape[-1] - recent :].sum(axis=-1)
    return float(ends.mean())


def lazy(row: Float[np.ndarray, "h g n"], *, threshold: float, sinks: int = 4, recent: int = 1024) -> bool:
    """Whether the mass exceeds the threshold and the prompt is longer than sinks + recent + 1."""
    return row.shape[-1] > sinks + recent + 1 and lazy_mass(row, sinks=sinks, recent=recent) > threshold


def kept(row: Float[np.ndarray, "h g n"], *, threshold: float, sinks: int = 4, recent: int = 1024) -> Int[np.ndarray, "k"]:
    """Kept positions of every head of the layer."""
    n = row.shape[-1]
    if not lazy(row, threshold=threshold, sinks=sinks, recent=recent):
        return np.arange(n)
    return np.concatenate([np.arange(sinks), np.arange(n - recent + 1, n)])
