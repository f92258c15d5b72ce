"""MPCache as a slow NumPy transcription: the static scores, and the clusters one query group reads."""

import numpy as np

from tests.reference.softmax import softmax


def static_scores(q: np.ndarray, k: np.ndarray, rows: int) -> np.ndarray:
    """max_i mean_h softmax(q_i·k) over the last `rows` queries: q [h, g, n, d], k [h, n, d]; neither scaled nor causal."""
    heads, groups, n, _ = q.shape
    p = [softmax(q[h, g, n - rows :] @ k[h].T) for h in range(heads) for g in range(groups)]
    return np.mean(p, 0).max(0)


def bound(q: np.ndarray, cluster: np.ndarray, alpha: float) -> float:
    """q · (α r_max + (1 - α) r_min) of a cluster's keys [m, d]."""
    return float(q @ (alpha * cluster.max(0) + (1 - alpha) * cluster.min(0)))


def best(u: dict[int, float], many: int, forced: set[int]) -> set[int]:
    """The `many` largest, and the forced ones beside them; equal ones by lower number."""
    return set(sorted(u, key=lambda c: (-u[c], c))[:many]) | forced


def slots_read(
    q: np.ndarray, k: np.ndarray, prompt: int, large: int, small: int, parts: tuple[float, float], alpha: float
) -> tuple[list[int], np.ndarray]:
    """Small clusters that a group of queries [g, d] reads of the first `prompt` keys [n, d], and all slots it reads."""
    per, full = large // small, prompt // small
    many = -(-full // per)
    part = lambda share, n: int(share * n + 1e-6)  # noqa: E731
    worth = lambda first, last: np.mean([bound(x, k[first:last], alpha) for x in q])  # noqa: E731
    first = {c: worth(c * large, min((c + 1) * large, full * small)) for c in range(many)}
    survive = best(first, part(parts[0], many), {0} | ({many - 1} if full % per else set()))
    second = {c: worth(c * small, (c + 1) * small) for c in range(full) if c // per in survive}
    read = sorted(best(second, part(parts[1], full), {0}))
    slots = [np.arange(c * small, (c + 1) * small) for c in read]
    return read, np.concatenate([*slots, np.arange(full * small, len(k))])
