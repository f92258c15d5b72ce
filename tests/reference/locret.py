"""Locret (arXiv 2410.01805): heads trained to guess the most attention that an answer pays a token; the best stay.

A prompt is read in pieces; after each the best `budget` of cache and piece stay, the last tokens pinned but after the final one.
The activation between the maps is not named in what was read: SiLU, the models' own.
"""

import numpy as np
from jaxtyping import Float, Int

from .top_k import sinks_and_recent, top_k


def gate(q: Float[np.ndarray, "h g d"], k: Float[np.ndarray, "h d"], v: Float[np.ndarray, "h d"], weights: dict) -> np.ndarray:
    """silu([q; k; v] W1) W2 of one token, before the rotary embedding."""
    x = np.concatenate([q.reshape(-1), k.reshape(-1), v.reshape(-1)]).astype(np.float64) @ weights["up"]["kernel"]
    return (x / (1 + np.exp(-x))) @ weights["down"]["kernel"]


def label(rows: Float[np.ndarray, "g t n"]) -> Float[np.ndarray, " n"]:
    """max over the group's query heads and the answer's queries of attention."""
    return rows.max((0, 1))


def loss(guess: Float[np.ndarray, "l h n"], truth: Float[np.ndarray, "l h n"], weight: float = 0.0025) -> float:
    """mean smooth-L1 + weight · sum over layers of mean (guess_(t+1) - guess_t)²."""
    off = np.abs(guess - truth)
    smooth = np.where(off < 1, off**2 / 2, off - 0.5)
    return smooth.mean() + weight * sum((np.diff(layer) ** 2).mean() for layer in guess)


def cut(u: Float[np.ndarray, " n"], held: Int[np.ndarray, " m"], *, budget: int, pinned: int) -> Int[np.ndarray, " k"]:
    """Positions that stay of those held, ascending: the last `pinned` and the best others; u by position."""
    return held[top_k(u[held], budget, sinks_and_recent(len(held), recent=pinned))]
