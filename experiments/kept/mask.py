"""Which prompt positions each head of a cache holds."""

from typing import Any

import numpy as np


def kept_mask(cache: Any, tokens: int) -> np.ndarray:
    """bool [l, h, n]: which prompt positions each head of row 0 holds."""
    layers, _, heads = cache.lengths.shape
    mask = np.zeros((layers, heads, tokens), bool)
    for layer in range(layers):
        for head, positions in enumerate(cache.kept(layer)[0]):
            mask[layer, head, positions] = True
    return mask
