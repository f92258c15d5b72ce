"""PQCache as a slow NumPy transcription: k-means of a prompt's keys, what the codes say of them, and what is read."""

import numpy as np

from tests.reference.softmax import softmax


def nearest(points: np.ndarray, book: np.ndarray) -> np.ndarray:
    """The centroid [c, e] nearest to each point [n, e], ties to the lower index."""
    return ((points[:, None] - book[None]) ** 2).sum(-1).argmin(1)


def kmeans(points: np.ndarray, first: np.ndarray, steps: int) -> tuple[np.ndarray, np.ndarray]:
    """Centroids and codes after at most `steps` means."""
    book = first.copy()
    codes = nearest(points, book)
    for _ in range(steps):
        for c in range(len(book)):
            if (codes == c).any():
                book[c] = points[codes == c].mean(0)
        before, codes = codes, nearest(points, book)
        if (before == codes).all():
            break
    return book, codes


def coded(k: np.ndarray, starts: np.ndarray, groups: int, steps: int) -> np.ndarray:
    """k̂ of keys [n, d], every group of channels by its own centroids, which start from the tokens `starts`."""
    found = []
    for part in np.split(k, groups, axis=1):
        book, codes = kmeans(part, part[starts], steps)
        found.append(book[codes])
    return np.concatenate(found, 1)


def chosen(q: np.ndarray, k_hat: np.ndarray, many: int) -> np.ndarray:
    """The tokens of largest Σ_g softmax(q_g · k̂ / √d), ascending."""
    worth = softmax(q @ k_hat.T / np.sqrt(q.shape[1])).sum(0)
    return np.sort(np.argsort(-worth, kind="stable")[:many])
