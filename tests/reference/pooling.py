"""Length-preserving one-dimensional pooling along the last axis (spec: eviction methods 5.1, core methods 0.3)."""

import numpy as np
from jaxtyping import Float


def avg_pool(a: Float[np.ndarray, "*b n"], size: int) -> Float[np.ndarray, "*b n"]:
    """pool(a)[i] = sum_{|j-i| <= size//2} a[j] / size, zeros outside: the edges are damped. `size` is odd."""
    return _windows(a, size, 0.0).sum(axis=-1) / size


def max_pool(a: Float[np.ndarray, "*b n"], size: int) -> Float[np.ndarray, "*b n"]:
    """pool(a)[i] = max_{|j-i| <= size//2} a[j], nothing outside. `size` is odd."""
    return _windows(a, size, -np.inf).max(axis=-1)


def no_pool(a: Float[np.ndarray, "*b n"], size: int = 1) -> Float[np.ndarray, "*b n"]:
    """The identity, with the signature of the others."""
    return a


def _windows(a: np.ndarray, size: int, fill: float) -> np.ndarray:
    if size % 2 == 0:
        raise ValueError(f"a pooling size is odd, got {size}")
    edge = size // 2
    padded = np.pad(a, [(0, 0)] * (a.ndim - 1) + [(edge, edge)], constant_values=fill)
    return np.lib.stride_tricks.sliding_window_view(padded, size, axis=-1)
