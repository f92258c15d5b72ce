"""Neural Garbage Collection as it is served, slowly: blocks of the slots held ranked by the last queries, one layer."""

import numpy as np


def block_scores(rows: np.ndarray, size: int) -> np.ndarray:
    """Mean over a block's slots of the mean over heads and queries of attention rows [h, g, w, n]; the last may be shorter."""
    token = rows.mean((0, 1, 2))
    return np.array([token[at : at + size].mean() for at in range(0, len(token), size)])


def kept(rows: np.ndarray, size: int, share: float) -> np.ndarray:
    """Indices of the slots that stay: those of the best max(1, floor(m share)) blocks, ties to the earlier."""
    scores = block_scores(rows, size)
    best = np.argsort(-scores, kind="stable")[: max(1, int(len(scores) * share))]
    return np.array([slot for block in sorted(best) for slot in range(block * size, min((block + 1) * size, rows.shape[-1]))])


def held_before_rounds(interval: int, forgotten: float, rounds: int) -> float:
    """Slots just before round `rounds`: every round leaves 1 - ε of them, and δ come; δ/ε in the limit."""
    held = 0.0
    for _ in range(rounds):
        held = held * (1 - forgotten) + interval
    return held
