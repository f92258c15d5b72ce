"""How query heads become one decision per KV head."""

import numpy as np
from jaxtyping import Float


def group_mean(scores: Float[np.ndarray, "h g n"]) -> Float[np.ndarray, "h n"]:
    """Mean over the query heads of a KV head."""
    return scores.mean(axis=1)


def group_max(scores: Float[np.ndarray, "h g n"]) -> Float[np.ndarray, "h n"]:
    """Maximum over the query heads of a KV head."""
    return scores.max(axis=1)


def all_mean(scores: Float[np.ndarray, "h g n"]) -> Float[np.ndarray, "h n"]:
    """Mean over every query head of the layer, repeated for each KV head (TOVA)."""
    return np.broadcast_to(scores.mean(axis=(0, 1)), scores[:, 0].shape).copy()
