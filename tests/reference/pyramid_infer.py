"""PyramidInfer (arXiv 2405.12532): after each layer the prompt's least attended tokens leave all later layers.

Readings of what is open:
- The recent window is the last 1 + R tokens, R = int(0.2 n): they are the rows, and never leave. The context is what is before.
- A layer's own cache is cut to the same survivors as the hidden states that go on.
- Ratios compound; a context that would be no more than m_min = min(64, n - 1 - R) stays as it is.
- Sinks count inside the k that stay.
- While decoding the generated tokens alone are cut: where 1 + R + e of them are whole, the oldest e become
  max(int(0.9 e ratio'), 1). They are scored by the last 1 + R rows, weighed as in the prefill. Nothing is cut twice, and
  first tokens of a group have no protection.
- All heads are averaged: a layer has one set.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .highest import floor_share, highest


def ratio(layer: int, layers: int, p: float = 0.9) -> float:
    """(1 - p) (cos(pi l / L) + 1) / 2 + p."""
    return (1 - p) * (np.cos(np.pi * layer / layers) + 1) / 2 + p


def context_size(context: int, share: float, least: int) -> int:
    """int(ctx ratio), or ctx where that is at most m_min or the ratio is 1."""
    if context <= least or share >= 1:
        return context
    k = floor_share(context, share)
    return k if k > least else context


def weighted_mean(rows: Float[np.ndarray, "r s"], last: float = 1.2) -> Float[np.ndarray, "s"]:
    """Rows times linspace(1, 1.2), mean over the rows."""
    return (np.linspace(1, last, len(rows))[:, None] * rows).mean(axis=0)


def layer_kept(
    rows: Float[np.ndarray, "a r s"], share: float, least: int, *, sinks: int = 4, last: float = 1.2
) -> Int[np.ndarray, "k"]:
    """Indices that survive a layer, from the last rows of all heads over the tokens that reached it; rows are the window."""
    recent, size = rows.shape[1:]
    context = size - recent
    u = weighted_mean(rows.mean(axis=0), last)[:context]
    u = np.where(np.arange(context) < sinks, np.inf, u)
    return np.append(highest(u, context_size(context, share, least)), np.arange(context, size))


def prefill(
    rows: Callable[[int, np.ndarray], np.ndarray], n: int, layers: int, *, p: float = 0.9, sinks: int = 4, interval: int = 1
) -> list[Int[np.ndarray, "k"]]:
    """Positions that each layer holds; rows(l, survivors) answers its last 1 + R rows [heads, 1 + R, survivors]."""
    recent = 1 + floor_share(n, 0.2)
    least = min(64, n - recent)
    survivors, held = np.arange(n), []
    for layer in range(layers):
        if layer % interval == 0:
            survivors = survivors[layer_kept(rows(layer, survivors), ratio(layer, layers, p), least, sinks=sinks)]
        held.append(survivors)
    return held


@dataclass
class Decoding:
    """One layer of one sequence: what the prompt left, generated tokens that were cut, generated tokens that are whole."""

    prompt: Int[np.ndarray, "s"]
    share: float
    recent: int
    every: int = 16
    factor: float = 0.9
    cut: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    whole: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    rows: list[dict[int, float]] = field(default_factory=list)

    @property
    def held(self) -> Int[np.ndarray, "s"]:
        return np.concatenate([self.prompt, self.cut, self.whole]).astype(int)

    def step(self, a: Float[np.ndarray, "a s"], t: int) -> None:
        """The row of every head over what is held and the new token."""
        self.whole = np.append(self.whole, t)
        row = dict(zip(self.held.tolist(), a.mean(axis=0), strict=True))
        self.rows = [*self.rows, row][-self.recent :]
        if len(self.whole) >= self.recent + self.every:
            self.compress()

    def compress(self) -> None:
        """Of the oldest e whole tokens max(int(0.9 e ratio'), 1) stay."""
        old, self.whole = self.whole[: self.every], self.whole[self.every :]
        u = weighted_mean(np.array([[row[int(j)] for j in old] for row in self.rows]))
        keep = max(floor_share(self.every, self.factor * self.share), 1)
        self.cut = np.append(self.cut, old[highest(u, keep)])
