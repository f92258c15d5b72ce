"""Where the slots of a cache in tiers are."""

from typing import Any

import numpy as np


def positions(cache: Any, layer: int, h: int) -> np.ndarray:
    """Of a head's slots, row 0, tier by tier in the order of the pools."""
    regions = [(part, int(part.start[layer, 0, h]), int(part.length[layer, 0, h])) for part in cache.parts]
    return np.concatenate([np.asarray(part.pos[start : start + n]) for part, start, n in regions])
