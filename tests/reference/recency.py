"""Recency: the later position wins (local window, StreamingLLM)."""

import numpy as np
from jaxtyping import Float


def recency(heads: int, n: int) -> Float[np.ndarray, "h n"]:
    """u_j = j for every head."""
    return np.tile(np.arange(n, dtype=np.float64), (heads, 1))
