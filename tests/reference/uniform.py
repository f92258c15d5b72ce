"""The same budget for every head."""

import numpy as np
from jaxtyping import Int


def share_to_slots(n: int, share: float) -> int:
    """floor(n share + 1e-9), at least 1: 100 * 0.1 is 10, whatever the last bit of the product."""
    return max(1, int(np.floor(n * share + 1e-9)))


def uniform(layers: int, heads: int, budget: int, n: int) -> Int[np.ndarray, "l h"]:
    """min(budget, n) everywhere, at least 1."""
    return np.full((layers, heads), min(max(budget, 1), n))
