"""CaM (Cache Merging, ICML 2024): the value of a token about to be evicted is added, by chance, to the next ones.

Readings of what the sources leave open:
- The mean under the ratio runs over all later tokens (`over=None`) or over the next `over` ones, as the streaming release has it.
- Fewer than m later tokens get v / m each all the same, so some mass is lost (the release).
- 0 / 0 and no later token give probability 0, x / 0 gives 1. The current step's output uses unmodified values.
- Query heads of a group are averaged before anything else: one draw for each KV head.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int


def ratio(a: Float[np.ndarray, "n"], i: int, over: int | None = None) -> float:
    """a_i / mean of a over the tokens after i."""
    later = a[i + 1 :] if over is None else a[i + 1 : i + 1 + over]
    if len(later) == 0:
        return 0.0
    if later.mean() > 0:
        return float(a[i] / later.mean())
    return np.inf if a[i] > 0 else 0.0


def probability(a: Float[np.ndarray, "n"], i: int, over: int | None = None) -> float:
    """p = clip(ratio, 0, 1)."""
    return min(max(ratio(a, i, over), 0.0), 1.0)


def merged_values(v: Float[np.ndarray, "n d"], i: int, m: int) -> Float[np.ndarray, "n d"]:
    """v_j + v_i / m for the next m tokens j, as far as there are any."""
    out = v.astype(np.float64).copy()
    out[i + 1 : i + 1 + m] += out[i] / m
    return out


# ---- Hosts: which slot goes


def oldest_after(sinks: int) -> Callable:
    """Sinks and recent tokens: the slot right after the sinks."""
    return lambda acc: sinks


def least_attended(sinks: int, recent: int) -> Callable:
    """Heavy hitters: the lowest accumulated attention outside both ends; ties to the lower slot."""
    return lambda acc: sinks + int(acc[sinks : len(acc) - recent].argmin())


@dataclass
class Head:
    """One KV head in slot order: `accumulate` says whether the ratio reads sums of rows or the current row."""

    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    pos: Int[np.ndarray, "n"]
    budget: int
    victim: Callable
    m: int = 32
    over: int | None = None
    accumulate: bool = False

    def __post_init__(self) -> None:
        self.acc, self.row = np.zeros(len(self.k)), np.zeros(len(self.k))

    def append(self, k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"], at: int) -> None:
        """One token, before it attends."""
        self.k, self.v, self.pos = np.vstack([self.k, k]), np.vstack([self.v, v]), np.append(self.pos, at)
        self.acc = np.append(self.acc, 0.0)

    def observe(self, row: Float[np.ndarray, "n"]) -> None:
        """The step's attention, averaged over the group."""
        self.row, self.acc = row, self.acc + row

    def evict(self, draw: float) -> float | None:
        """Over the budget: merge iff draw < p, then drop. Returns p, None if nothing had to go."""
        if len(self.k) <= self.budget:
            return None
        i = self.victim(self.acc)
        p = probability(self.acc if self.accumulate else self.row, i, self.over)
        if draw < p:
            self.v = merged_values(self.v, i, self.m)
        stay = np.arange(len(self.k)) != i
        self.k, self.v, self.pos, self.acc = self.k[stay], self.v[stay], self.pos[stay], self.acc[stay]
        return p
