"""The highest scores and the shares of a count: what the eviction references have in common."""

import numpy as np
from jaxtyping import Bool, Float, Int


def order(scores: Float[np.ndarray, "n"]) -> Int[np.ndarray, "n"]:
    """Indices from the highest score to the lowest, ties to the lower index."""
    return np.argsort(-np.asarray(scores, np.float64), kind="stable")


def highest(scores: Float[np.ndarray, "n"], count: int) -> Int[np.ndarray, "k"]:
    """The `count` highest, ascending; none where count <= 0, all where count >= n."""
    return np.sort(order(scores)[: max(count, 0)])


def highest_of(scores: Float[np.ndarray, "n"], count: int, allowed: Bool[np.ndarray, "n"]) -> Int[np.ndarray, "k"]:
    """The `count` highest among those allowed, ascending."""
    among = np.flatnonzero(allowed)
    return among[highest(np.asarray(scores)[among], count)]


def floor_share(n: int, share: float) -> int:
    """floor(n share): 100 * 0.29 is 29, whatever the last bit of the product."""
    return int(np.floor(n * share + 1e-9))
