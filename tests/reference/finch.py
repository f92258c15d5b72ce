"""FINCH (arXiv 2408.00167): the question's attention on the context, levelled by how many keys each row could see.

Readings of what the sources leave open:
- The window is the question: everything after the delimiter, which itself leaves the prompt.
- Row i of W multiplies its probabilities by S - W + i, the keys before its own; the softmax runs over all S keys.
- Chunks cut the whole prompt, window included, and each keeps its top max(1, int(length share)), the window leading.
- Kept keys are re-rotated to ranks (`rerotation`), ascending.
"""

import numpy as np
from jaxtyping import Float, Int

from .attention import attention_rows
from .heads import group_mean
from .top_k import sinks_and_recent, top_k


def split_at(ids: list[int], delimiter: int) -> tuple[list[int], int]:
    """(prompt without the delimiter, window): context and question joined, and the question's length."""
    at = ids.index(delimiter)
    return [*ids[:at], *ids[at + 1 :]], len(ids) - at - 1


def of_rows(rows: Float[np.ndarray, "h g w n"]) -> Float[np.ndarray, "h m"]:
    """u = group mean of the mean over rows of A[i, j] (n - w + i), for the n - w keys before the window."""
    w, n = rows.shape[2:]
    levelled = rows * np.arange(n - w, n)[:, None]
    return group_mean(levelled.mean(axis=2))[:, : n - w]


def finch(q: Float[np.ndarray, "h g w d"], k: Float[np.ndarray, "h n d"]) -> Float[np.ndarray, "h m"]:
    """The same from the window's queries."""
    return of_rows(attention_rows(q, k))


def kept(u: Float[np.ndarray, "m"], *, window: int, share: float, chunk: int | None = None) -> Int[np.ndarray, "k"]:
    """Kept positions of one head: the window and the best of the context, by chunks if `chunk` says so."""
    scores, n = np.append(u, np.zeros(window)), len(u) + window
    protected, size, out = sinks_and_recent(n, recent=window), chunk or n, []
    for start in range(0, n, size):
        part = slice(start, start + size)
        out.extend(start + top_k(scores[part], int(len(scores[part]) * share), protected[part]))
    return np.array(out, int)
