"""Ada-KV's head budgets inside a layer (arXiv 2407.11550): the exact form and the release's rounding."""

import numpy as np
from jaxtyping import Bool, Float, Int

from .top_k import ranking


def adaptive(
    scores: Float[np.ndarray, "h n"], budget: int, *, alpha: float = 0.2, protected: Bool[np.ndarray, "n"] | None = None
) -> Int[np.ndarray, "h"]:
    """Slots a head, summing to h * budget: the top int(budget alpha) of each head, the rest by a flattened top-k.

    Protected entries come first in both rankings and count; at least one is forced a head. Ties go to the lower head,
    then to the lower position. Where we differ from the release: its rounding loses slots (`adaptive_rounded`).
    """
    heads, n = scores.shape
    protected = np.zeros(n, bool) if protected is None else protected
    total = min(heads * budget, heads * n)
    safe = min(n, max(1, int(budget * alpha + 1e-9)))
    order = [ranking(scores[h], protected) for h in range(heads)]
    rest = [(h, j) for h in range(heads) for j in order[h][safe:]]
    rest.sort(key=lambda e: (0, -e[1], e[0]) if protected[e[1]] else (1, -scores[e], e[0], e[1]))
    counts = np.full(heads, safe)
    for h, _ in rest[: max(0, total - heads * safe)]:
        counts[h] += 1
    return counts


def flattened_counts(scores: Float[np.ndarray, "h n"], total: int) -> Int[np.ndarray, "h"]:
    """How many of the `total` largest entries of a layer lie in each head, ties to the lower head and position."""
    chosen = np.argsort(-scores.ravel(), kind="stable")[:total]
    return np.bincount(chosen // scores.shape[1], minlength=scores.shape[0])


def adaptive_rounded(scores: Float[np.ndarray, "h n"], base: int, *, alpha: float = 0.2) -> Int[np.ndarray, "h"]:
    """The release: round(c (1 - alpha) + int(base alpha)), c the flattened counts of h * base; sums are not kept.

    `scores` and `base` leave the window out; halves round to even.
    """
    counts = flattened_counts(scores, scores.shape[0] * base)
    return np.array([round(c * (1 - alpha) + int(base * alpha)) for c in counts])
