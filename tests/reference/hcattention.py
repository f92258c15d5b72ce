"""HCAttention as the paper writes it: codes, table look-up, the fewest slots that reach tau, and the mask of block-wise prefill."""

import numpy as np
from jaxtyping import Bool, Float, Int

from .softmax import softmax

#: What a cumulative sum may lack of tau in float32 and still count as reaching it.
SLOP = 1e-6


def books(codebook: Float[np.ndarray, "m1 c e"], d: int) -> Float[np.ndarray, "m c e"]:
    """One codebook a group: the one given, or the one that all groups share."""
    return np.broadcast_to(codebook, (d // codebook.shape[-1], *codebook.shape[1:])).astype(np.float64)


def codes(k: Float[np.ndarray, "n d"], codebook: Float[np.ndarray, "m1 c e"]) -> Int[np.ndarray, "n m"]:
    """HA3: P[j, i] = argmin_m || k_j^(i) - C[i, m] ||², ties to the lower m."""
    book = books(codebook, k.shape[1])
    parts = k.astype(np.float64).reshape(len(k), len(book), 1, -1)
    return ((parts - book) ** 2).sum(-1).argmin(-1)


def decoded(p: Int[np.ndarray, "n m"], codebook: Float[np.ndarray, "m1 c e"]) -> Float[np.ndarray, "n d"]:
    """Q(k_j): the centroids that P names, side by side."""
    book = books(codebook, p.shape[1] * codebook.shape[-1])
    return book[np.arange(len(book)), p].reshape(len(p), -1)


def query_table(q: Float[np.ndarray, " d"], codebook: Float[np.ndarray, "m1 c e"]) -> Float[np.ndarray, "m c"]:
    """HA4: T[i, m] = q^(i) . C[i, m]."""
    book = books(codebook, len(q))
    return np.einsum("ie,ice->ic", q.astype(np.float64).reshape(len(book), -1), book)


def look_up(table: Float[np.ndarray, "m c"], p: Int[np.ndarray, "n m"]) -> Float[np.ndarray, " n"]:
    """HA5: z_j = sum_i T[i, P[j, i]]."""
    return table[np.arange(len(table)), p].sum(1)


def attention(q: Float[np.ndarray, " d"], p: Int[np.ndarray, "n m"], codebook: Float[np.ndarray, "m1 c e"]):
    """HA6: softmax of the scores over sqrt(d)."""
    return softmax(look_up(query_table(q, codebook), p) / np.sqrt(len(q)))


def chosen(a: Float[np.ndarray, " n"], tau: float) -> Int[np.ndarray, " k"]:
    """HA7: slots by falling probability, ties by index, until they reach tau; all where they never do."""
    order = np.argsort(-a, kind="stable")
    reached = np.flatnonzero(np.cumsum(a[order]) >= tau - SLOP)
    return order[: reached[0] + 1 if len(reached) else len(a)]


def output(a: Float[np.ndarray, " n"], v: Float[np.ndarray, "n d"], slots: Int[np.ndarray, " k"], renormalise: bool = False):
    """HA8: y = sum of a_j v_j over the slots chosen."""
    y = a[slots] @ v[slots]
    return y / a[slots].sum() if renormalise else y


def allowed(n: int, size: int, anchor: int, tail: int = 0, overlap: int = 0) -> Bool[np.ndarray, "n n"]:
    """Which keys (columns) each query of block-wise prefill sees: its own block so far and the first `anchor` tokens.

    The last `tail` queries see everything before them; blocks are those of the tokens before the tail. A block sees the last
    `overlap` tokens of the one before too.
    """
    p, j = np.arange(n)[:, None], np.arange(n)[None]
    near = (j // size == p // size) | (j >= p // size * size - overlap) | (j < anchor) | (p >= n - tail)
    return (j <= p) & near
