"""KeyDiff where the prompt comes in pieces: by blocks against what was kept so far, or by chunks of their own.

Each cut measures the keys that are there against their own anchor, so an order of arrival matters.
"""

import numpy as np
from jaxtyping import Float, Int

from .key_diff import key_diff
from .top_k import top_k


def block_wise(k: Float[np.ndarray, "n d"], *, budget: int, block: int) -> Int[np.ndarray, "k"]:
    """The first `budget` keys are held; every next `block` keys join them and the top `budget` of all stay."""
    held = np.arange(min(budget, len(k)))
    for start in range(len(held), len(k), block):
        joined = np.concatenate([held, np.arange(start, min(start + block, len(k)))])
        held = joined[top_k(key_diff(k[None, joined])[0], budget)]
    return held


def chunk_wise(k: Float[np.ndarray, "n d"], *, share: float, chunk: int) -> Int[np.ndarray, "k"]:
    """Every chunk of `chunk` keys keeps its own top max(1, int(length share)), the last one its share of what it has."""
    kept = []
    for start in range(0, len(k), chunk):
        piece = k[start : start + chunk]
        kept.extend(start + top_k(key_diff(piece[None])[0], int(len(piece) * share)))
    return np.array(kept, int)
