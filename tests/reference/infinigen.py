"""InfiniGen as a slow NumPy transcription: columns, the guess, and what is fetched."""

import numpy as np


def columns(q: np.ndarray, skew: np.ndarray, many: int) -> np.ndarray:
    """The columns of largest Σ|q A| of one KV head's queries [g, n, d], ascending."""
    weight = np.abs(q @ skew).sum((0, 1))
    return np.sort(np.argsort(-weight, kind="stable")[:many])


def guess(q: np.ndarray, k: np.ndarray, basis: np.ndarray) -> np.ndarray:
    """ẑ of every key [n, d]: the largest over the queries [g, d], in the columns of the basis [d, c], over √d."""
    return ((q @ basis) @ (k @ basis).T).max(0) / np.sqrt(q.shape[1])


def fetched(z: np.ndarray, alpha: float, cap: int) -> list[np.ndarray]:
    """Tokens of each KV head, ascending: z [h, n]."""
    near = [int((row > row.max() - alpha).sum()) for row in z]
    count = min(int(np.mean(near)), cap)
    return [np.sort(np.argsort(-row, kind="stable")[:count]) for row in z]
