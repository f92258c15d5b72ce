"""TOVA (arXiv 2401.06104) as published: at every call the positions that the last query of all heads looks at least go.

Readings of what is open:
- The prompt is one call unless `chunk` is given; a call's tokens attend to what is held and, causally, to each other, and its
  last row decides.
- Nothing is protected: the newest token may evict itself. `protect_last` is a port's choice, inside the budget.
"""

import numpy as np
from jaxtyping import Float, Int

from .attention import attention_rows
from .decode_head import Step
from .highest import highest


def kept(last: Float[np.ndarray, "a s"], budget: int, *, protect_last: bool = False) -> Int[np.ndarray, "k"]:
    """topk of the mean over all query heads; everything where no more than b are held."""
    u = last.mean(axis=0)
    if protect_last:
        u = np.append(u[:-1], np.inf)
    return highest(u, budget)


def decode_layer(
    q: Float[np.ndarray, "h g t d"],
    k: Float[np.ndarray, "h t d"],
    v: Float[np.ndarray, "h t d"],
    prompt: int,
    budget: int,
    *,
    chunk: int | None = None,
    protect_last: bool = False,
) -> list[Step]:
    """What the layer holds (one set for all heads) after the prompt and after each later token, and out [h g d]."""
    size = chunk or prompt
    calls = [(first, min(first + size, prompt)) for first in range(0, prompt, size)]
    calls += [(t, t + 1) for t in range(prompt, k.shape[1])]
    held, history = np.zeros(0, int), []
    for first, end in calls:
        held = np.append(held, np.arange(first, end))
        last = attention_rows(q[:, :, end - 1 : end], k[:, held])[:, :, 0]
        out = np.einsum("hgs,hsd->hgd", last, v[:, held].astype(np.float64))
        held = held[kept(last.reshape(-1, len(held)), budget, protect_last=protect_last)]
        if end >= prompt:
            history.append(Step(held, None if end == prompt else out))
    return history
