"""Quest as a slow NumPy transcription: one query head, one step."""

import numpy as np

from tests.reference.softmax import softmax


def bounds(q: np.ndarray, pages: np.ndarray) -> np.ndarray:
    """u of each page: q [d], pages [p size d]."""
    most, least = pages.max(1), pages.min(1)
    return np.array([sum(max(q[c] * m[c], q[c] * s[c]) for c in range(len(q))) for m, s in zip(most, least, strict=True)])


def slots_read(q: np.ndarray, k: np.ndarray, prompt: int, pages: int, size: int) -> np.ndarray:
    """Slots of the `pages` best whole pages of the first `prompt` keys, and all behind the last whole one; k [n d]."""
    full = prompt // size
    best = np.argsort(-bounds(q, k[: full * size].reshape(full, size, -1)), kind="stable")[:pages]
    return np.sort(np.concatenate([*(np.arange(p * size, (p + 1) * size) for p in best), np.arange(full * size, len(k))]))


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray, slots: np.ndarray) -> np.ndarray:
    """Attention over those slots alone."""
    return softmax(k[slots] @ q / np.sqrt(len(q))) @ v[slots]
