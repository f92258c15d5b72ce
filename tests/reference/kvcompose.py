"""KVCompose (arXiv 2509.05165): each head ranks its own tokens; the k-th best of all heads together compete between layers.

Readings of what the sources leave open:
- A head's score is the group mean of the per-query-head maxima, plus the mean of those over the layer's KV heads.
- Layer 0's composites are the elementwise maximum over layers, itself included.
- Pairs (layer, rank) tie to the lower layer, then to the lower rank. `lower` ranks of every layer lead the competition.
- Scores are times ||v|| before the heads' mean is added; unstructured counts are per head over (layer, head, position).
"""

import numpy as np
from jaxtyping import Float, Int

from .top_k import top_k


def own_scores(rows: Float[np.ndarray, "h g m n"]) -> Float[np.ndarray, "h n"]:
    """Second-pass probabilities of m queries on n cached keys: maximum over queries, then the group mean."""
    return rows.max(axis=2).mean(axis=1)


def shared(own: Float[np.ndarray, "*l h n"], *, value_norm: Float[np.ndarray, "*l h n"] | None = None) -> np.ndarray:
    """u [*l, h, n]: each head's score plus the mean over the layer's KV heads."""
    own = own if value_norm is None else own * value_norm
    return own + own.mean(axis=-2, keepdims=True)


def composites(u: Float[np.ndarray, "l h n"]) -> Float[np.ndarray, "l n"]:
    """Mean over heads of the k-th largest score; layer 0 gets the maximum over layers."""
    out = -np.sort(-u, axis=-1)
    out = out.mean(axis=1)
    out[0] = out.max(axis=0)
    return out


def layer_counts(c: Float[np.ndarray, "l n"], total: int, *, lower: int = 0) -> Int[np.ndarray, "l"]:
    """How many of the `total` best (layer, rank) pairs lie in each layer."""
    layers, n = c.shape
    order = sorted(np.ndindex(layers, n), key=lambda e: (e[1] >= lower, -c[e], e))[:total]
    return np.bincount([layer for layer, _ in order], minlength=layers)


def kept(u: Float[np.ndarray, "l h n"], total: int, *, lower: int = 0) -> list[list[Int[np.ndarray, "k"]]]:
    """Kept positions [l][h]: each head its own best, as many as its layer has; `total` composites over the layers."""
    counts = layer_counts(composites(u), total, lower=lower)
    return [[top_k(row, count) for row in layer] for layer, count in zip(u, counts, strict=True)]


def unstructured(u: Float[np.ndarray, "l h n"], total: int, *, lower: int = 0) -> Int[np.ndarray, "l h"]:
    """How many of the `total` best (layer, head, position) lie in each head, whose `lower` best lead; ties to the first."""
    rank = np.argsort(np.argsort(-u, axis=-1, kind="stable"), axis=-1)
    chosen = np.argsort(-(u + np.where(rank < lower, 1e9, 0.0)).ravel(), kind="stable")[:total]
    return np.bincount(chosen // u.shape[2], minlength=u.shape[0] * u.shape[1]).reshape(u.shape[:2])
