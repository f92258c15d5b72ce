"""Attention received over the whole prompt (H2O), as a sum and as a mean over the queries that could see a key."""

import numpy as np
from jaxtyping import Float


def column_sums(rows: Float[np.ndarray, "h g n n"]) -> Float[np.ndarray, "h n"]:
    """acc[j] = sum_{i >= j} A[i, j]. H2O, arXiv 2306.14048; group mean: the paper has no groups."""
    return rows.sum(axis=2).mean(axis=1)


def visible_mean(rows: Float[np.ndarray, "h g n n"]) -> Float[np.ndarray, "h n"]:
    """acc[j] / (n - j): position j is seen by the n - j queries from j on."""
    n = rows.shape[-1]
    return column_sums(rows) / (n - np.arange(n))
