"""FASA as a slow NumPy transcription: contextual agreement, and the tokens a query head reads."""

import numpy as np


def top(u: np.ndarray, k: int) -> set[int]:
    """The k largest, equal ones by lower index."""
    return set(np.argsort(-u, kind="stable")[:k].tolist())


def agreements(q: np.ndarray, k: np.ndarray, tokens: int, pairs: list[tuple[int, int]]) -> list[float]:
    """CA of every pair for one query: q [d], k [n d]."""
    full = top(k @ q, tokens)
    return [len(full & top(k[:, list(p)] @ q[list(p)], tokens)) / min(tokens, len(k)) for p in pairs]


def tokens_read(q: np.ndarray, k: np.ndarray, channels: list[int], tokens: int) -> np.ndarray:
    """What a query head attends to: its best tokens by its dominant channels."""
    return np.array(sorted(top(k[:, channels] @ q[channels], tokens)))
