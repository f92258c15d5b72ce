"""KeyDiff: keys unlike the average direction are kept."""

import numpy as np
from jaxtyping import Float

#: Norms are floored here, as the cosine of a zero vector has no value.
FLOOR = 1e-8


def key_diff(k: Float[np.ndarray, "h n d"]) -> Float[np.ndarray, "h n"]:
    """u_j = -cos(k_j, anchor), anchor = mean_j k_j / ||k_j||. Rotated keys. KeyDiff, arXiv 2504.15364."""
    unit = _normalise(k.astype(np.float64))
    anchor = _normalise(unit.mean(axis=1, keepdims=True))
    return -(unit * anchor).sum(axis=-1)


def _normalise(x: np.ndarray) -> np.ndarray:
    return x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), FLOOR)
