"""D2O (arXiv 2406.13035): layer budgets from attention variance, sinks and heavy hitters, evicted tokens merged into kept ones."""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .exact_alloc import exact_alloc

# ---- Layer budgets (D1-D3, section 3.3 of the specification)


def variances(columns: Float[np.ndarray, "h g n"]) -> Float[np.ndarray, "h g"]:
    """Unbiased variance over positions of each query head's column sums c[j] = sum_i A[i, j]."""
    return columns.var(axis=-1, ddof=1)


def layers_minmax(measured: Float[np.ndarray, "l a"]) -> Float[np.ndarray, "l"]:
    """Head mean of the variances, min-max normalised over the layers."""
    mean = measured.mean(axis=1)
    return (mean - mean.min()) / (mean.max() - mean.min() + 1e-6)


def heads_minmax(measured: Float[np.ndarray, "l a"]) -> Float[np.ndarray, "l"]:
    """Variances min-max normalised over the heads of each layer, then the head mean: the release."""
    low, high = measured.min(axis=1, keepdims=True), measured.max(axis=1, keepdims=True)
    return ((measured - low) / (high - low + 1e-6)).mean(axis=1)


def raw(measured: Float[np.ndarray, "l a"]) -> Float[np.ndarray, "l"]:
    """Head mean of the variances."""
    return measured.mean(axis=1)


def inverse_variance_softmax(f: Float[np.ndarray, "l"]) -> Float[np.ndarray, "l"]:
    """D3 up to its factor L rho."""
    w = np.exp(-(f - f.min()))
    return w / w.sum()


def reciprocal(f: Float[np.ndarray, "l"]) -> Float[np.ndarray, "l"]:
    w = 1 / np.maximum(f, 1e-6)
    return w / w.sum()


def exponential_decay(f: Float[np.ndarray, "l"], rate: float = 0.1) -> Float[np.ndarray, "l"]:
    w = np.exp(-rate * np.argsort(np.argsort(f, kind="stable"), kind="stable"))
    return w / w.sum()


def layer_budgets(shares: Float[np.ndarray, "l"], total: int, n: int, *, sinks: int = 4) -> Int[np.ndarray, "l"]:
    """S_l, summing to total: between max(sinks + 2, floor(0.01 n)), as far as the mean allows, and n."""
    layers = len(shares)
    low = min(max(sinks + 2, int(0.01 * n + 1e-9)), total // layers)
    return exact_alloc(shares, total, np.full(layers, low), np.full(layers, n))


# ---- Who stays (D5)


def split(budget: int, share: float = 0.75) -> tuple[int, int]:
    """(N, M): heavy hitters with the sinks among them, and recent tokens."""
    heavy = int(np.floor(budget * share + 1e-9))
    recent = max(1, budget - heavy)
    return budget - recent, recent


def kept(s: Float[np.ndarray, "n"], heavy: int, recent: int, sinks: int) -> Int[np.ndarray, "k"]:
    """Indices that stay, ascending: the last `recent`, the first `sinks` inside `heavy`, and the highest s; ties to the lower."""
    n = len(s)
    older = list(range(n - recent))
    forced = older[: min(sinks, heavy)]
    rest = sorted((j for j in older if j not in forced), key=lambda j: (-s[j], j))
    return np.array(sorted([*forced, *rest[: heavy - len(forced)], *range(max(n - recent, 0), n)]), int)


# ---- Where the others go (D6-D9)


def match(evicted: Float[np.ndarray, "e d"], kept: Float[np.ndarray, "c d"]):
    """(j*, U*) of each evicted row: the kept row of highest cosine, ties to the lower index."""
    unit = lambda x: x / np.maximum(np.linalg.norm(x, axis=-1, keepdims=True), 1e-6)  # noqa: E731
    u = unit(evicted) @ unit(kept).T
    return u.argmax(axis=1), u.max(axis=1)


def ema(best: Float[np.ndarray, "e"], tau: float | None, beta: float) -> float:
    """D7 at one eviction event; None before the first."""
    return best.mean() if tau is None else beta * best.mean() + (1 - beta) * tau


def softmax_weights(u: float) -> tuple[float, float, float]:
    """(self, other, divisor of the other) of D8: e, exp(u), exp(u)."""
    return np.e, np.exp(u), np.exp(u)


def scatter_mean(u: float) -> tuple[float, float, float]:
    """The release: similarity times row, plain mean."""
    return 1.0, u, 1.0


def average(u: float) -> tuple[float, float, float]:
    return 1.0, 1.0, 1.0


def merge(
    kept: Float[np.ndarray, "c d"],
    evicted: Float[np.ndarray, "e d"],
    target: Int[np.ndarray, "e"],
    u: Float[np.ndarray, "e"],
    weights: Callable = softmax_weights,
) -> Float[np.ndarray, "c d"]:
    """D9 for rows that all pass: every target takes all of its rows at once."""
    out = kept.astype(np.float64)
    for j in set(target.tolist()):
        mine = [i for i in range(len(u)) if target[i] == j]
        first, parts = weights(0.0)[0], [weights(u[i]) for i in mine]
        above = first * kept[j] + sum(p[1] * evicted[i] for p, i in zip(parts, mine, strict=True))
        out[j] = above / (first + sum(p[2] for p in parts))
    return out


# ---- A layer of one sequence, event by event


@dataclass
class Head:
    """One KV head: what it holds."""

    k: np.ndarray
    v: np.ndarray
    s: np.ndarray
    pos: np.ndarray


@dataclass
class Layer:
    """One layer of one sequence: its heads, budget and threshold."""

    heads: list[Head]
    budget: int
    sinks: int = 4
    share: float = 0.75
    beta: float = 0.7
    weights: Callable = softmax_weights
    threshold: Callable = ema
    tau: float | None = field(default=None)

    def append(self, k: Float[np.ndarray, "h d"], v: Float[np.ndarray, "h d"], position: int) -> None:
        """One token, before it attends."""
        for head, key, value in zip(self.heads, k, v, strict=True):
            head.k, head.v = np.vstack([head.k, key]), np.vstack([head.v, value])
            head.s, head.pos = np.append(head.s, 0.0), np.append(head.pos, position)

    def observe(self, rows: list[Float[np.ndarray, "n"]]) -> None:
        """D4: one row of attention a head, summed or averaged over its query heads."""
        for head, row in zip(self.heads, rows, strict=True):
            head.s = head.s + row

    def evict(self) -> None:
        """D5-D9 where a head holds more than the budget."""
        heavy, recent = split(self.budget, self.share)
        plans = []
        for head in self.heads:
            stay = kept(head.s, heavy, recent, self.sinks) if len(head.s) > self.budget else np.arange(len(head.s))
            gone = np.setdiff1d(np.arange(len(head.s)), stay)
            plans.append((head, stay, gone, *match(head.k[gone], head.k[stay])))
        best = np.concatenate([u for *_, u in plans])
        if len(best):
            self.tau = self.threshold(best, self.tau, self.beta)
        for head, stay, gone, target, u in plans:
            passes = u >= self.tau if len(u) else np.zeros(0, bool)
            into = lambda x: merge(x[stay], x[gone[passes]], target[passes], u[passes], self.weights)  # noqa: B023, E731
            head.k, head.v, head.s, head.pos = into(head.k), into(head.v), head.s[stay], head.pos[stay]
