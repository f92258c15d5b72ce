"""CompressKV, formulas K1 to K7 (spec: core methods 4.2; arXiv 2508.02401)."""

import numpy as np
from jaxtyping import Float, Int

from .pooling import avg_pool
from .softmax import softmax
from .top_k import top_k


def span_mass(rows: Float[np.ndarray, "t a"], generated: list[int], span: list[int], multiplicity: bool = False) -> float:
    """K1 for one head: its mass on the answer span, summed over the steps whose token occurs in the span."""
    total = 0.0
    for row, token in zip(rows, generated, strict=True):
        times = span.count(token) if multiplicity else int(token in span)
        total += times * float(row.sum())
    return total


def copy_score(rows: Float[np.ndarray, "t n"], generated: list[int], prompt: list[int], start: int, size: int) -> float:
    """The classical score of one head: 1 / |A| for each step whose most attended position lies in A and holds its token."""
    total = 0.0
    for row, token in zip(rows, generated, strict=True):
        j = int(np.argmax(row))
        if start <= j < start + size and prompt[j] == token:
            total += 1 / size
    return total


def head_ranking(mean: Float[np.ndarray, "q"]) -> list[int]:
    """Heads by mean score, descending, ties to the lower head."""
    return sorted(range(len(mean)), key=lambda h: (-mean[h], h))


def window_rows(q: Float[np.ndarray, "w d"], k: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "w n"]:
    """One query head's attention rows of the last w queries of n tokens, causal inside the window."""
    w, n = len(q), len(k)
    logits = np.full((w, n), -np.inf)
    for i in range(w):
        for j in range(n - w + i + 1):
            logits[i, j] = q[i].astype(np.float64) @ k[j].astype(np.float64) / np.sqrt(q.shape[1])
    return softmax(logits)


def selection_scores(rows: Float[np.ndarray, "r w m"], kernel: int = 5) -> Float[np.ndarray, "m"]:
    """K2 and K3 from the chosen heads' rows over the m columns before the window."""
    return np.mean([avg_pool(r.sum(axis=0), kernel) for r in rows], axis=0)


def kept(rows: Float[np.ndarray, "r w n"], budget: int, kernel: int = 5) -> Int[np.ndarray, "k"]:
    """K4: the budget - w best older positions and the window, for every KV head of the layer."""
    w, n = rows.shape[1:]
    if n <= budget:
        return np.arange(n)
    best = top_k(selection_scores(rows[..., : n - w], kernel), budget - w)
    return np.concatenate([best, np.arange(n - w, n)])


def relative_error(full: Float[np.ndarray, "*s"], compressed: Float[np.ndarray, "*s"], eps: float = 1e-6) -> float:
    """One term of K5."""
    return float(np.linalg.norm(compressed - full) / (np.linalg.norm(full) + eps))


def layer_scores(errors: Float[np.ndarray, "s l"]) -> Float[np.ndarray, "l"]:
    """K6: each data set's errors as shares, their mean, again as shares."""
    mean = np.mean([row / row.sum() for row in errors], axis=0)
    return mean / mean.sum()


def layer_budgets(share: list[float], budget: int, m: int = 32, cap: int = 3, repair: str = "round_robin") -> list[int]:
    """K7 with its repair, one unit at a time."""
    layers, most = len(share), max(cap * budget, m)
    total = budget * layers
    rest = total - m * layers
    got = [min(max(m + round(e * rest), m), most) for e in share]
    down = sorted(range(layers), key=lambda i: (-share[i], i))
    up = sorted(range(layers), key=lambda i: (share[i], i))
    while (delta := total - sum(got)) != 0:
        walk = [i for i in down if got[i] < most] if delta > 0 else [i for i in up if got[i] > m]
        if not walk:
            break
        for i in walk[: 1 if repair == "argmax" else abs(delta)]:
            got[i] += 1 if delta > 0 else -1
    return got
