"""OmniKV as a slow NumPy transcription: one step of one layer."""

import numpy as np

from tests.reference.softmax import softmax


def chosen(logits: np.ndarray, k: int, first_softmax: bool = False) -> np.ndarray:
    """Tokens of the largest logit over all heads, ascending; logits [heads, n]."""
    rows = softmax(logits) if first_softmax else logits
    return np.sort(np.argsort(-rows.max(0), kind="stable")[:k])


def reads_few(layer: int, filters: tuple[int, ...], waiting: int) -> bool:
    """Whether a layer reads the last filter's tokens alone."""
    behind = [layer - f for f in filters if layer >= f]
    return bool(behind) and min(behind) > waiting
