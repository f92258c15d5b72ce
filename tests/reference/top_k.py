"""Which positions a head keeps."""

import numpy as np
from jaxtyping import Bool, Float, Int


def ranking(scores: Float[np.ndarray, "n"], protected: Bool[np.ndarray, "n"] | None = None) -> Int[np.ndarray, "n"]:
    """Positions from the most to the least wanted.

    Protected first, the later positions first among them; then by score, ties to the lower position.
    """
    n = len(scores)
    protected = np.zeros(n, bool) if protected is None else protected
    return np.array(sorted(range(n), key=lambda j: (0, -j, 0) if protected[j] else (1, -scores[j], j)), int)


def top_k(scores: Float[np.ndarray, "n"], budget: int, protected: Bool[np.ndarray, "n"] | None = None) -> Int[np.ndarray, "k"]:
    """The first max(1, budget) of the ranking, ascending: a head never ends up empty."""
    return np.sort(ranking(scores, protected)[: max(1, budget)])


def sinks_and_recent(n: int, sinks: int = 0, recent: int = 0) -> Bool[np.ndarray, "n"]:
    """The protection mask of the first `sinks` and the last `recent` positions."""
    position = np.arange(n)
    return (position < sinks) | (position >= n - recent)
