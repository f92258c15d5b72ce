"""DapQ (arXiv 2603.11564): pseudo queries at the positions to come score the prompt.

Readings of what is open (no official code):
- Pseudo tokens attend to each other, causally: what they give the prompt does not sum to 1.
- No pooling, mean over the group, no protected window; `recent` protects the last tokens where asked, inside the budget.
- Pseudo keys and values never stay; decoding goes on at position n from the last true token.
"""

import numpy as np
from jaxtyping import Float, Int

from .attention import attention_rows
from .top_k import sinks_and_recent, top_k


def pseudo_scores(rows: Float[np.ndarray, "h g w t"], n: int) -> Float[np.ndarray, "h n"]:
    """u[k] = sum over the pseudo rows of A[., k], k < n; mean over the group."""
    return rows[..., :n].sum(axis=2).mean(axis=1)


def kept(
    q: Float[np.ndarray, "h g w d"], k: Float[np.ndarray, "h t d"], budget: int, *, recent: int = 0
) -> list[Int[np.ndarray, "k"]]:
    """Prompt positions of each head; q are the w pseudo queries, k the keys of the n prompt tokens and the w pseudo tokens."""
    n = k.shape[1] - q.shape[2]
    u = pseudo_scores(attention_rows(q, k), n)
    if n <= budget:
        return [np.arange(n)] * len(u)
    return [top_k(head, budget, sinks_and_recent(n, recent=recent)) for head in u]
