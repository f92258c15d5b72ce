"""Key norm: the keys of small norm are kept."""

import numpy as np
from jaxtyping import Float


def key_norm(k: Float[np.ndarray, "h n d"]) -> Float[np.ndarray, "h n"]:
    """u = -||k||_2; rotation leaves the norm alone, so rotated keys serve."""
    return -np.sqrt((k.astype(np.float64) ** 2).sum(axis=-1))
