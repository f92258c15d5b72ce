"""Observation-window scores (SnapKV, PyramidKV, Ada-KV, TOVA)."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float

from .attention import attention_rows
from .heads import group_mean
from .pooling import avg_pool


def window_attention(
    q: Float[np.ndarray, "h g t d"],
    k: Float[np.ndarray, "h n d"],
    *,
    window: int,
    pool: Callable = avg_pool,
    size: int = 5,
    reduce: Callable = group_mean,
) -> Float[np.ndarray, "h m"]:
    """u = pool(reduce(mean_w softmax(q k / sqrt(d))[..., : n - window])), for the n - window older positions.

    The softmax runs over all n keys with the causal corner and the window's own columns are cut off afterwards, so the
    rows that are averaged do not sum to 1. The window itself has no score: it is protected. `q` holds the last
    t >= window queries of the prompt. SnapKV, arXiv 2404.14469; the mean replaces the paper's sum (same order).
    """
    rows = attention_rows(q[:, :, q.shape[2] - window :], k)
    return scores_of_rows(rows, window=window, pool=pool, size=size, reduce=reduce)


def scores_of_rows(
    rows: Float[np.ndarray, "h g w n"],
    *,
    window: int,
    pool: Callable = avg_pool,
    size: int = 5,
    reduce: Callable = group_mean,
) -> Float[np.ndarray, "h m"]:
    """The same from given probabilities: mean over rows, reduce the heads, pool, without the last `window` columns."""
    older = rows[..., : rows.shape[-1] - window].mean(axis=2)
    return pool(reduce(older), size)


def scores_by_query_head(
    rows: Float[np.ndarray, "h g w n"], *, window: int, pool: Callable = avg_pool, size: int = 5
) -> Float[np.ndarray, "h m"]:
    """SnapKV's order: mean over rows, pool every query head by itself, mean over the group. Of an average pool it is the same."""
    return group_mean(pool(rows[..., : rows.shape[-1] - window].mean(axis=2), size))
