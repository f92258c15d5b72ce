"""CAKE (arXiv 2503.12491): layer budgets from entropy and variance of attention, eviction by mean + gamma variance.

Readings of what is open:
- The columns before the window are cut off after the softmax and not renormalised; entropy and variance are sums over heads.
- Budgets leave the window out: a layer holds b_l + W slots. Nothing happens where n <= b + W.
- `release_budgets` is the release's arithmetic and may exceed the cap by its second spreading; callers cap it again.
  `exact_budgets` is the other choice: the same total, capped, by largest remainders.
- Cascade: a layer never gets back what it lost, so its budget is capped by what is still stored. The slots that this leaves
  over stay unused.
- The release keeps the order of its ranking; here kept slots are in order of position, which decoding pools over.
- Decoding evicts only where more than b_l + W are held.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .exact_alloc import exact_alloc
from .highest import highest
from .pooling import avg_pool

# ---- Scores


def older(rows: Float[np.ndarray, "h g w n"]) -> Float[np.ndarray, "h g w m"]:
    """A': the last W rows over the n - W columns before the window."""
    return rows[..., : rows.shape[-1] - rows.shape[-2]].astype(np.float64)


def entropy(a: Float[np.ndarray, "h g w m"]) -> float:
    """Hs = -sum a log(a + 1e-10), over heads, rows and columns."""
    return float(-(a * np.log(a + 1e-10)).sum())


def variance(a: Float[np.ndarray, "h g w m"]) -> float:
    """Vs: unbiased variance over the rows, summed over heads and columns."""
    return float(a.var(axis=2, ddof=1).sum())


def preference(a: Float[np.ndarray, "h g w m"], tau1: float = 1.0, tau2: float = 1.0) -> float:
    """P = Hs^(1/tau1) Vs^(1/tau2)."""
    return entropy(a) ** (1 / tau1) * variance(a) ** (1 / tau2)


def log_preference(a: Float[np.ndarray, "h g w m"], tau1: float = 1.0, tau2: float = 1.0) -> float:
    """log P, for exponents that underflow."""
    return np.log(entropy(a)) / tau1 + np.log(variance(a)) / tau2


def indicator(a: Float[np.ndarray, "h g w m"], gamma: float = 200.0, size: int = 5) -> Float[np.ndarray, "h m"]:
    """u: mean + gamma unbiased variance over the rows, pooled, mean over the group."""
    u = a.mean(axis=2) + gamma * a.var(axis=2, ddof=1)
    return avg_pool(u, size).mean(axis=1)


# ---- Layer budgets


def adjust(raw: Float[np.ndarray, "l"], total: int, cap: int) -> Int[np.ndarray, "l"]:
    """The release: truncate, clip to the cap, spread what was clipped off, spread what is missing to the total."""
    whole = np.array([int(x) for x in raw])
    budgets = np.minimum(whole, cap)
    budgets = spread(budgets, int((whole - budgets).sum()), cap)
    return spread(budgets, total - int(budgets.sum()), cap)


def spread(budgets: Int[np.ndarray, "l"], extra: int, cap: int) -> Int[np.ndarray, "l"]:
    """`extra` slots evenly over the layers below the cap, the remainder one each to the lowest of them."""
    below = np.flatnonzero(budgets < cap)
    out = budgets.copy()
    if len(below) and extra > 0:
        out[below] += extra // len(below)
        out[below[: extra % len(below)]] += 1
    return out


def release_budgets(preferences: Float[np.ndarray, "l"], total: int, cap: int) -> Int[np.ndarray, "l"]:
    """raw_l = P_l / sum P total, adjusted; may exceed the cap."""
    return adjust(preferences / preferences.sum() * total, total, cap)


def exact_budgets(preferences: Float[np.ndarray, "l"], total: int, cap: int) -> Int[np.ndarray, "l"]:
    """The same shares, capped, summing to min(total, l cap)."""
    layers = len(preferences)
    return exact_alloc(preferences, total, np.zeros(layers, int), np.full(layers, cap))


# ---- Prefill


def two_phase(
    scores: list[Float[np.ndarray, "h m"]], preferences: Float[np.ndarray, "l"], total: int, allocate: Callable = release_budgets
) -> list[list[Int[np.ndarray, "k"]]]:
    """Older positions kept by each layer and head: budgets once every layer is seen, then one cut."""
    cap = scores[0].shape[1]
    budgets = np.minimum(allocate(preferences, total, cap), cap)
    return [[highest(head, b) for head in layer] for layer, b in zip(scores, budgets, strict=True)]


@dataclass
class Cascade:
    """Budgets over the layers seen so far; earlier layers are cut again by the scores they stored."""

    total: int
    cap: int
    allocate: Callable = release_budgets
    preferences: list[float] = field(default_factory=list)
    scores: list[np.ndarray] = field(default_factory=list)
    kept: list[list[np.ndarray]] = field(default_factory=list)
    history: list[np.ndarray] = field(default_factory=list)

    def see(self, u: Float[np.ndarray, "h m"], preference: float) -> None:
        """One more layer."""
        self.preferences.append(preference)
        self.scores.append(u)
        self.kept.append([np.arange(u.shape[1])] * len(u))
        budgets = np.minimum(self.allocate(np.array(self.preferences), self.total, self.cap), self.cap)
        for layer, budget in enumerate(budgets):
            stored = zip(self.scores[layer], self.kept[layer], strict=True)
            self.kept[layer] = [kept[highest(scores[kept], budget)] for scores, kept in stored]
        self.history.append(np.array([len(layer[0]) for layer in self.kept]))


def prefill(
    rows: list[Float[np.ndarray, "h g w n"]],
    budget: int,
    *,
    tau1: float = 1.0,
    tau2: float = 1.0,
    gamma: float = 200.0,
    allocate: Callable = release_budgets,
) -> list[list[Int[np.ndarray, "k"]]]:
    """Positions kept by each layer and head, window included; total (b - W) L; everything where n <= b + W."""
    w, n = rows[0].shape[2:]
    if n <= budget + w:
        return [[np.arange(n)] * len(layer) for layer in rows]
    older_rows = [older(layer) for layer in rows]
    cascade = Cascade((budget - w) * len(rows), n - w, allocate)
    for a in older_rows:
        cascade.see(indicator(a, gamma), preference(a, tau1, tau2))
    return [[np.append(kept, np.arange(n - w, n)) for kept in layer] for layer in cascade.kept]


# ---- Decoding


def decode_scores(a: Float[np.ndarray, "g s"], window: int, size: int = 5) -> Float[np.ndarray, "m"]:
    """The last row over the columns before the window, pooled, mean over the group."""
    return avg_pool(a[:, : a.shape[1] - window], size).mean(axis=0)


@dataclass
class Decoding:
    """One KV head of a layer with b_l older slots and W recent ones; `held` is what the prompt's cut left of it."""

    budget: int
    window: int
    held: Int[np.ndarray, "s"]

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None:
        """The prompt is cut before: nothing to do."""

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        """Keep the b_l highest older ones and the last W."""
        self.held = np.append(self.held, t)
        if len(self.held) > self.budget + self.window:
            old = highest(decode_scores(a, self.window), self.budget)
            self.held = np.append(self.held[old], self.held[len(self.held) - self.window :])
