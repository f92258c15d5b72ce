"""KVMerger (arXiv 2407.08454): runs of neighbouring similar keys become one key, one value scaled by the run's length.

Readings of what the sources leave open:
- sigma^2 is the mean squared distance to the pivot over the run; with sigma = 0 the weights are equal.
- The printed threshold is strict, cosines are capped at 1, so eps = 1 merges nothing.
- For a given count of runs, singletons' cuts come first, then the lowest cosines, ties to the lower index.
- A run's length may be capped; the scan from the last token starts a new run where it is full.
- Accumulated attention is summed over the group; a pivot's tie goes to the lower position.
"""

import numpy as np
from jaxtyping import Bool, Float


def neighbour_cosines(k: Float[np.ndarray, "n d"]) -> Float[np.ndarray, "n-1"]:
    """cos(k_j, k_{j+1}), at most 1."""
    unit = k.astype(np.float64) / np.maximum(np.linalg.norm(k.astype(np.float64), axis=1, keepdims=True), 1e-12)
    return np.minimum((unit[:-1] * unit[1:]).sum(axis=1), 1.0)


def singletons(s: Float[np.ndarray, "n"], heavy: int, recent: int) -> Bool[np.ndarray, "n"]:
    """The last `recent` tokens and, of the others, the `heavy` of highest accumulated attention."""
    n = len(s)
    older = sorted(range(n - recent), key=lambda j: (-s[j], j))[:heavy]
    return np.isin(np.arange(n), older) | (np.arange(n) >= n - recent)


def runs_above(cos: Float[np.ndarray, "m"], eps: float, single: Bool[np.ndarray, "n"], cap: int | None = None) -> list[list[int]]:
    """From the last token to the first: a token joins its right neighbour's run while the cosine exceeds eps."""
    runs = [[len(single) - 1]]
    for j in range(len(single) - 2, -1, -1):
        fits = cap is None or len(runs[-1]) < cap
        if cos[j] > eps and fits and not single[j] and not single[j + 1]:
            runs[-1].append(j)
        else:
            runs.append([j])
    return [run[::-1] for run in runs[::-1]]


def runs_of_count(cos: Float[np.ndarray, "m"], count: int, single: Bool[np.ndarray, "n"]) -> list[list[int]]:
    """Exactly `count` runs, if the singletons allow as few: cuts at the count - 1 lowest cosines."""
    forced = [j for j in range(len(cos)) if single[j] or single[j + 1]]
    order = forced + sorted((j for j in range(len(cos)) if j not in forced), key=lambda j: (cos[j], j))
    cuts = sorted(order[: max(len(forced), count - 1)])
    edges = [0, *(j + 1 for j in cuts), len(cos) + 1]
    return [list(range(a, b)) for a, b in zip(edges, edges[1:], strict=False)]


def weights(k: Float[np.ndarray, "r d"], pivot: int) -> Float[np.ndarray, "r"]:
    """w = g / sum g, g_i = exp(-||k_i - k_p||^2 / (2 sigma^2))."""
    squared = ((k.astype(np.float64) - k[pivot]) ** 2).sum(axis=1)
    if squared.mean() == 0:
        return np.full(len(k), 1 / len(k))
    g = np.exp(-squared / (2 * squared.mean()))
    return g / g.sum()


def merged(k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"], s: Float[np.ndarray, "n"], runs: list[list[int]]):
    """(keys, values, positions) of the runs: sum w k, |run| sum w v, the pivot's position. The pivot has the highest s."""
    keys, values, positions = [], [], []
    for run in runs:
        pivot = int(s[run].argmax())
        w = weights(k[run], pivot)
        keys.append(w @ k[run])
        values.append(len(run) * (w @ v[run]))
        positions.append(run[pivot])
    return np.array(keys), np.array(values), np.array(positions)
