"""MInference's patterns as a slow NumPy transcription: one query head, a prompt read whole; float64."""

import numpy as np

from tests.reference.softmax import softmax


def last_rows(q: np.ndarray, k: np.ndarray, last: int) -> np.ndarray:
    """Attention rows [last, n] of the last queries; q, k [n d]."""
    n = len(k)
    rows = np.zeros((last, n))
    for r in range(last):
        p = n - last + r
        rows[r, : p + 1] = softmax(k[: p + 1] @ q[p] / np.sqrt(q.shape[1]))
    return rows


def votes(rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(by column, by offset) of the last len(rows) queries of a prompt."""
    last, n = rows.shape
    by_offset = np.zeros(n)
    for r in range(last):
        for j in range(n - last + r + 1):
            by_offset[n - last + r - j] += rows[r, j]
    return rows.sum(0), by_offset


def top(scores: np.ndarray, size: int, forced: int) -> list[int]:
    """Places of the highest scores, the forced ones first."""
    scores = np.where(np.arange(len(scores)) < forced, np.inf, scores)
    return sorted(np.argsort(-scores, kind="stable")[:size].tolist())


def vertical_slash(rows: np.ndarray, v: int, s: int, forced: tuple[int, int]) -> tuple[list[int], list[int], np.ndarray]:
    """(columns, offsets, mask [n, n])."""
    n = rows.shape[1]
    by_column, by_offset = votes(rows)
    columns, offsets = top(by_column, min(n, v), forced[0]), top(by_offset, min(n, s), forced[1])
    mask = np.array([[j <= i and (j in columns or i - j in offsets) for j in range(n)] for i in range(n)])
    return columns, offsets, mask


def a_shape(n: int, first: int, recent: int) -> np.ndarray:
    return np.array([[j <= i and (j < first or i - j < recent) for j in range(n)] for i in range(n)])


def block_sparse(q: np.ndarray, k: np.ndarray, blocks: int, size: int) -> np.ndarray:
    """The mask of the best key blocks of each query block, its own among them."""
    n = len(k)
    means = lambda x: [x[at : at + size].mean(0) for at in range(0, n, size)]  # noqa: E731
    mask, keys = np.zeros((n, n), bool), means(k)
    for i, query in enumerate(means(q)):
        products = np.array([query @ keys[j] / np.sqrt(q.shape[1]) for j in range(i + 1)])
        products[i] = np.inf
        for j in np.argsort(-products, kind="stable")[:blocks]:
            mask[i * size : (i + 1) * size, j * size : (j + 1) * size] = True
    return mask & np.tril(np.ones((n, n), bool))


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, mask: np.ndarray) -> np.ndarray:
    z = np.where(mask, q @ k.T / np.sqrt(q.shape[1]), -np.inf)
    return softmax(z) @ v
