"""ThinK (arXiv 2407.21018): key channels that the last queries hardly use are left out, but for the newest keys.

u[c] = mean of q_c² over the last queries (and the group) times the mean of k_c² over all keys that are not evicted;
the floor(d ρ) of smallest u go. Equal ones: the higher channel goes first. Logits keep their 1 / sqrt(d).
"""

import numpy as np
from jaxtyping import Bool, Float


def worth(q: Float[np.ndarray, "g w d"], k: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    return (q**2).mean((0, 1)) * (k**2).mean(0)


def kept(u: Float[np.ndarray, " d"], pruned: float) -> Bool[np.ndarray, " d"]:
    """Which channels stay."""
    mask = np.zeros(len(u), bool)
    mask[np.lexsort((np.arange(len(u)), -u))[: len(u) - int(len(u) * pruned)]] = True
    return mask


def keys(k: Float[np.ndarray, "n d"], channels: Bool[np.ndarray, " d"], recent: int) -> Float[np.ndarray, "n d"]:
    """What attention reads of a prompt's keys: 0 where nothing is stored."""
    old = np.arange(len(k)) < len(k) - recent
    return np.where(old[:, None] & ~channels, 0.0, k)
