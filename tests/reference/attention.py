"""Causal attention probabilities of the last queries of a prompt, over all of its keys."""

import numpy as np
from jaxtyping import Float

from .softmax import softmax


def attention_rows(q: Float[np.ndarray, "h g w d"], k: Float[np.ndarray, "h n d"]) -> Float[np.ndarray, "h g w n"]:
    """softmax_j(q_i . k_j / sqrt(d)), row i at position n - w + i sees keys j <= n - w + i.

    With w = n these are the rows of the whole prompt.
    """
    w, n = q.shape[2], k.shape[1]
    logits = np.einsum("hgwd,hnd->hgwn", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1])
    seen = np.arange(n)[None, :] <= np.arange(n - w, n)[:, None]
    return softmax(np.where(seen, logits, -np.inf))
