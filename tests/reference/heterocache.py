"""HeteroCache (arXiv 2601.13684): calibration, budgets, drift and refresh (spec: core methods, HC1 to HC9)."""

from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from jaxtyping import Bool, Float, Int

from .exact_alloc import exact_alloc
from .pooling import avg_pool
from .softmax import softmax
from .top_k import ranking

ANCHOR, VOLATILE, PIVOT, SATELLITE = 1, 2, 3, 4


def best(scores: Float[np.ndarray, "n"], k: int) -> set[int]:
    """topk(scores, k): the k largest, ties to the lower index."""
    return set(ranking(scores)[:k].tolist())


def important(row: Float[np.ndarray, "n"], k: int, size: int) -> set[int]:
    """HC1: K(a) = topk(pool(a, size), min(k, n))."""
    return best(avg_pool(row, size), min(k, len(row)))


def overlap(one: set[int], two: set[int]) -> float:
    """HC2: O = |K1 ∩ K2| / min(|K1|, |K2|); 0 if a set is empty."""
    smaller = min(len(one), len(two))
    return len(one & two) / smaller if smaller else 0.0


def stability(rows: Float[np.ndarray, "s t h n"], k: int, size: int) -> Float[np.ndarray, "h"]:
    """HC3: median over steps 1..T of the overlap with the prompt's last row (step 0), averaged over samples first."""
    samples, steps, heads, _ = rows.shape
    sets = [[[important(rows[s, t, h], k, size) for h in range(heads)] for t in range(steps)] for s in range(samples)]
    each = [[[overlap(sets[s][t][h], sets[s][0][h]) for h in range(heads)] for t in range(1, steps)] for s in range(samples)]
    return np.median(np.mean(each, axis=0), axis=0)


def pairwise(rows: Float[np.ndarray, "h n"], k: int, size: int) -> Float[np.ndarray, "h h"]:
    """O(h, h') of all heads of a layer at one step."""
    sets = [important(row, k, size) for row in rows]
    return np.array([[overlap(a, b) for b in sets] for a in sets])


def similarity(rows: Float[np.ndarray, "t h n"], k: int, size: int) -> Float[np.ndarray, "h"]:
    """HC4: median over steps of the largest overlap with another head of the layer."""
    others = [pairwise(step, k, size) - 2 * np.eye(rows.shape[1]) for step in rows]
    return np.median(np.max(others, axis=2), axis=0)


def star_clusters(edges: Bool[np.ndarray, "h h"]) -> Int[np.ndarray, "h"]:
    """Greedy star clustering of one layer: the pivot's index for pivots and satellites, -1 for heads left over."""
    cluster, free = np.full(len(edges), -1), set(range(len(edges)))
    while free:
        near = {h: {other for other in free if other != h and edges[h, other]} for h in free}
        pivot = min(free, key=lambda h: (-len(near[h]), h))
        if not near[pivot]:
            break
        for h in {pivot} | near[pivot]:
            cluster[h] = pivot
        free -= {pivot} | near[pivot]
    return cluster


def roles(cluster: Int[np.ndarray, "h"], stable: Float[np.ndarray, "h"], theta: float) -> Int[np.ndarray, "h"]:
    """HC5, the clustering deciding who is similar: pivots, satellites, and of the rest anchors and volatile heads."""
    left = [ANCHOR if s >= theta else VOLATILE for s in stable]
    return np.array([PIVOT if c == h else SATELLITE if c >= 0 else left[h] for h, c in enumerate(cluster)])


def is_full(role: Int[np.ndarray, "*s"]) -> Bool[np.ndarray, "*s"]:
    return (role == VOLATILE) | (role == PIVOT)


def ratios(role: Int[np.ndarray, "*s"], stable: Float[np.ndarray, "*s"], eps: float = 1e-6) -> Float[np.ndarray, "*s"]:
    """HC7: r = |C| w / sum w with w = 1 / (S_stab + eps) over the compressed heads of all layers; -1 for full heads."""
    compressed = ~is_full(role)
    w = np.where(compressed, 1 / (stable + eps), 0.0)
    return np.where(compressed, compressed.sum() * w / max(w.sum(), 1e-300), -1.0)


def base_length(share: Fraction, heads: int, full: int, n: int) -> int:
    """HC6: floor((rho N - |F|) n / (N - |F|)), in exact rationals."""
    if share * heads <= full:
        raise ValueError(f"{full} full heads of {heads} need more than a share of {full}/{heads}; got {share}")
    return int((share * heads - full) * n // (heads - full))


def lengths_floor(base: int, ratio: Float[np.ndarray, "c"], n: int) -> Int[np.ndarray, "c"]:
    """min(n, floor(L_base r)): what clipping leaves over is not used."""
    return np.minimum(np.floor(base * ratio + 1e-9).astype(np.int64), n)


def lengths_exact(base: int, ratio: Float[np.ndarray, "c"], n: int) -> Int[np.ndarray, "c"]:
    """Integers proportional to r within 0 .. n that sum to L_base |C|."""
    return exact_alloc(ratio, base * len(ratio), np.zeros(len(ratio), int), np.full(len(ratio), n))


def drifted(overlaps: list[float], theta: float) -> bool:
    """HC9: the median of a window's overlaps is below theta, strictly."""
    return bool(np.median(overlaps) < theta)


def focus(q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "n d"], size: int) -> Float[np.ndarray, "n"]:
    """max_g pool(softmax(q k / sqrt(d))): one KV head's scores of its prompt keys."""
    logits = q.astype(np.float64) @ k.astype(np.float64).T / np.sqrt(k.shape[1])
    return avg_pool(softmax(logits), size).max(axis=0)


@dataclass
class Monitor:
    """A pivot and its satellites while decoding, with a tumbling window.

    Attributes:
        reference: I_ref.   base: L_base.   wanted: L_m of each satellite.   theta, w: threshold and window.
    """

    reference: set[int]
    base: int
    wanted: list[int]
    theta: float
    w: int
    window: list = field(default_factory=list)
    medians: list = field(default_factory=list)

    def see(self, scores: Float[np.ndarray, "n"]) -> list[list[int]] | None:
        """One step's scores of the prompt; J_m of each satellite if this step ends a window that drifted."""
        self.window.append(scores)
        if len(self.window) < self.w:
            return None
        overlaps = [len(best(s, self.base) & self.reference) / self.base for s in self.window]
        self.window = []
        self.medians.append(float(np.median(overlaps)))
        if not drifted(overlaps, self.theta):
            return None
        self.reference = best(scores, self.base)
        return [sorted(best(scores, m)) for m in self.wanted]
