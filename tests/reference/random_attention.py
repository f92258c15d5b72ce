"""Random Attention (arXiv 2609.03430): the prompt stays, decoded tokens go uniformly at random, head by head.

Readings of what the sources leave open:
- The prompt and the last `recent` are inside the budget; what is left goes to the largest of the numbers handed in.
- A prompt that with the recent tokens fills the budget leaves no random slots: pinned tokens are never dropped.
- `shared` numbers (one row for all heads) give the form that protects sinks and recent tokens for every head alike.
"""

import numpy as np
from jaxtyping import Float, Int

from .top_k import top_k


def kept(u: Float[np.ndarray, "h n"], *, budget: int, prompt: int, recent: int) -> Int[np.ndarray, "h k"]:
    """Held slots that stay, in slot order: the first `prompt`, the last `recent`, the top budget - prompt - recent by u."""
    n = u.shape[1]
    if n <= budget:
        return np.tile(np.arange(n), (len(u), 1))
    free, out = max(0, budget - prompt - recent), []
    for row in u:
        between = row[prompt : n - recent]
        best = top_k(between, free) if free else np.zeros(0, int)
        out.append(np.concatenate([np.arange(prompt), prompt + best, np.arange(n - recent, n)]))
    return np.stack(out)


def press(u: Float[np.ndarray, "h n"], budget: int) -> list[Int[np.ndarray, "k"]]:
    """Once after the prompt, nothing protected."""
    return [top_k(row, budget) for row in u]


def some_head_keeps(share: float, heads: int) -> float:
    """Chance that at least one of independent heads keeps a token."""
    return 1 - (1 - share) ** heads


def survival(budget: int, prompt: int, interval: int, recent: int = 0) -> float:
    """Chance to outlive one event: free slots over the candidates of a cache that is `interval` over its budget."""
    free = budget - prompt - recent
    return free / (free + interval)
