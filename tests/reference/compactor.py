"""Compactor (arXiv 2507.08143): keys that span the others' space, and keys that are attended to in their chunk.

Readings of what the sources leave open:
- Keys are those before the rotary embedding, centred over the tokens of each head.
- One Gaussian sketch [d, 48] serves every head of a layer; it is handed in unscaled and divided by sqrt(48).
- Both z-scores run over all heads and tokens of one prompt's layer. The weight is the share removed.
- The first 8 and the last 4 tokens get the maximum, and lead a ranking.
"""

import numpy as np
from jaxtyping import Float

from .non_causal import non_causal, z_score


def leverage(x: Float[np.ndarray, "n d"], *, sketch: Float[np.ndarray, "d r"] | None = None, jitter: float = 0.01) -> np.ndarray:
    """diag(X (X^T X + jitter I)^-1 X^T) [n], X the centred rows times sketch / sqrt(r)."""
    x = x.astype(np.float64) - x.mean(axis=0, dtype=np.float64)
    if sketch is not None:
        x = x @ sketch / np.sqrt(sketch.shape[1])
    gram = x.T @ x + jitter * np.eye(x.shape[1])
    return np.array([row @ np.linalg.solve(gram, row) for row in x])


def compactor(
    q: Float[np.ndarray, "h g n d"],
    k: Float[np.ndarray, "h n d"],
    k_raw: Float[np.ndarray, "h n d"],
    v: Float[np.ndarray, "h n d"],
    *,
    removed: float,
    sketch: Float[np.ndarray, "d r"] | None,
    chunk: int = 256,
    sinks: int = 8,
    recent: int = 4,
) -> Float[np.ndarray, "h n"]:
    """u = removed z(leverage) + z(attention); both ends get the maximum."""
    spanning = np.stack([leverage(head, sketch=sketch) for head in k_raw])
    u = removed * z_score(spanning) + non_causal(q, k, v, chunk=chunk)
    n = u.shape[1]
    ends = (np.arange(n) < sinks) | (np.arange(n) >= n - recent)
    return np.where(ends, u.max(), u)
