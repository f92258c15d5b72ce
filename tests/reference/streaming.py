"""Eviction while decoding, one head, one token at a time: attend to everything held, accumulate, then evict."""

from collections.abc import Callable

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax
from .top_k import top_k

#: row(t, held): the probabilities of the query at position t over the positions held, which end with t.
Row = Callable[[int, np.ndarray], np.ndarray]
#: score(held, acc, last): what to rank by, from positions, attention accumulated and the last row.
Score = Callable[[np.ndarray, np.ndarray, np.ndarray], np.ndarray]


def rows_of(q: Float[np.ndarray, "g t d"], k: Float[np.ndarray, "t d"]) -> Row:
    """Rows computed from queries and keys (rotated at their true positions), mean over the query heads given."""

    def row(t: int, held: np.ndarray) -> np.ndarray:
        logits = q[:, t].astype(np.float64) @ k[held].astype(np.float64).T / np.sqrt(q.shape[-1])
        return softmax(logits).mean(axis=0)

    return row


def by_accumulated(held: np.ndarray, acc: np.ndarray, last: np.ndarray) -> np.ndarray:
    """H2O, arXiv 2306.14048: the running sum, unscaled; protect the recent ones with `recent`."""
    return acc


def by_last_row(held: np.ndarray, acc: np.ndarray, last: np.ndarray) -> np.ndarray:
    """TOVA, arXiv 2401.06104: the last row alone (give `rows_of` every query head of the layer)."""
    return last


def by_recency(held: np.ndarray, acc: np.ndarray, last: np.ndarray) -> np.ndarray:
    """StreamingLLM at true positions: the later position wins; protect the first with `sinks`."""
    return held.astype(np.float64)


def evict_loop(
    row: Row,
    prompt: int,
    steps: int,
    *,
    score: Score,
    budget: int,
    sinks: int = 0,
    recent: int = 0,
    every: int = 1,
    after_prefill: bool = True,
) -> list[Int[np.ndarray, "n"]]:
    """Positions held after the prefill and after each of `steps` tokens.

    The prompt is attended causally and its rows accumulated. Every `every` tokens, and after the prefill if asked, what
    is held is cut to `budget` by `score`; the first `sinks` positions of the text and the last `recent` held are
    protected.
    """
    held, acc = np.arange(prompt), np.zeros(prompt)
    for t in range(prompt):
        last = np.concatenate([row(t, held[: t + 1]), np.zeros(prompt - t - 1)])
        acc = acc + last
    history = []
    for step in range(steps + 1):
        if step:
            held, acc = np.append(held, prompt + step - 1), np.append(acc, 0.0)
            last = row(prompt + step - 1, held)
            acc = acc + last
        due = after_prefill if step == 0 else step % every == 0
        if due and len(held) > budget:
            protected = (held < sinks) | (np.arange(len(held)) >= len(held) - recent)
            chosen = top_k(score(held, acc, last), budget, protected)
            held, acc = held[chosen], acc[chosen]
        history.append(held)
    return history
