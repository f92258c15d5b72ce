"""RoCo (arXiv 2402.06262): the lowest mean attention goes, among the tokens whose attention varies least.

Readings of what is open:
- Attention is averaged over the group before anything is summed or squared.
- Decoding counts generated tokens only: the prompt is held beside the budget and has no statistics. A row's part over the
  generated tokens is taken as it is, not renormalised.
- A token's count is the number of rows that could see it, its own included; inside a stride the earlier queries do not count
  for a later token.
- Prompts are fed in strides: the first b tokens are held without statistics, later rows are counted as they come. Cut at once
  (`feasible_at_once`), a prompt spares what a stride of one spares: floor(0.1 b) + 1 of its tokens and the sinks are not feasible.
- A guarded token is never feasible. The release gives it a spread of 1e9, so that it becomes feasible where fewer than kF
  others are left: while decoding where int(0.3 b) < tail - 1, b < 30 by default.
- Both rankings give ties to the lower position: of equal spreads the lower is feasible, of equal means the later goes.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from .highest import floor_share, highest_of


@dataclass
class Statistics:
    """Running sums of attention a, of a^2, and how often a token was seen."""

    s1: Float[np.ndarray, "s"] = field(default_factory=lambda: np.zeros(0))
    s2: Float[np.ndarray, "s"] = field(default_factory=lambda: np.zeros(0))
    c: Float[np.ndarray, "s"] = field(default_factory=lambda: np.zeros(0))

    def append(self, count: int) -> None:
        """New tokens start at 0."""
        zeros = np.zeros(count)
        self.s1, self.s2, self.c = np.append(self.s1, zeros), np.append(self.s2, zeros), np.append(self.c, zeros)

    def see(self, a: Float[np.ndarray, "s"], visible: int) -> None:
        """One row over the first `visible` tokens."""
        self.s1[:visible] += a[:visible]
        self.s2[:visible] += a[:visible] ** 2
        self.c[:visible] += 1

    def take(self, kept: Int[np.ndarray, "k"]) -> None:
        """The same selection for every statistic."""
        self.s1, self.s2, self.c = self.s1[kept], self.s2[kept], self.c[kept]

    def mean(self) -> Float[np.ndarray, "s"]:
        """mu = s1 / c; a token that nobody saw has mean 0."""
        return self.s1 / np.maximum(self.c, 1)

    def spread(self) -> Float[np.ndarray, "s"]:
        """sd = sqrt(max(s2 / c - mu^2, 0))."""
        return np.sqrt(np.maximum(self.s2 / np.maximum(self.c, 1) - self.mean() ** 2, 0))


def evicted(
    mu: Float[np.ndarray, "s"], sd: Float[np.ndarray, "s"], guarded: Bool[np.ndarray, "s"], feasible: int, count: int = 1
) -> Int[np.ndarray, "e"]:
    """The `count` lowest means among the `feasible` lowest spreads of tokens that are not guarded."""
    least = highest_of(-sd, feasible, ~guarded)
    among = np.isin(np.arange(len(mu)), least)
    stay = highest_of(mu, int(among.sum()) - count, among)
    return np.setdiff1d(least, stay)


def feasible_decode(budget: int, recent: float = 0.3) -> int:
    """kF = b - int(0.3 b)."""
    return budget - floor_share(budget, recent)


def feasible_prefill(budget: int, stride: int, sinks: int = 4, recent: float = 0.1) -> int:
    """kF = max(b - int(0.1 b) - sinks, stride)."""
    return max(budget - floor_share(budget, recent) - sinks, stride)


def feasible_at_once(length: int, budget: int, sinks: int = 4, recent: float = 0.1) -> int:
    """n - 1 - int(0.1 b) - sinks: a share of the budget is spared, however long the prompt."""
    return length - 1 - floor_share(budget, recent) - sinks


@dataclass
class Decoding:
    """One KV head: the prompt, never touched, and at most `budget` generated tokens. `budget` is more than `tail`."""

    budget: int
    recent: float = 0.3
    tail: int = 10
    prompt: int = 0
    generated: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    statistics: Statistics = field(default_factory=Statistics)

    @property
    def held(self) -> Int[np.ndarray, "s"]:
        return np.append(np.arange(self.prompt), self.generated)

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None:
        """The prompt stays whole and is not counted."""
        self.prompt = a.shape[-1]

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        """Count the row over the generated tokens, then evict one where the budget is exceeded."""
        self.generated = np.append(self.generated, t)
        self.statistics.append(1)
        self.statistics.see(a.mean(axis=0)[self.prompt :], len(self.generated))
        if len(self.generated) > self.budget:
            size = len(self.generated)
            guarded = np.arange(size) >= size - self.tail
            gone = evicted(self.statistics.mean(), self.statistics.spread(), guarded, feasible_decode(self.budget, self.recent))
            stay = np.setdiff1d(np.arange(size), gone)
            self.generated = self.generated[stay]
            self.statistics.take(stay)


@dataclass
class Prompt:
    """One KV head while a prompt is fed in strides: after each stride as many tokens go."""

    budget: int
    stride: int
    sinks: int = 4
    recent: float = 0.1
    tail: int = 10
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    statistics: Statistics = field(default_factory=Statistics)

    def start(self) -> None:
        """The first b tokens, without statistics."""
        self.held = np.arange(self.budget)
        self.statistics.append(self.budget)

    def feed(self, rows: Float[np.ndarray, "g c s"], positions: Int[np.ndarray, "c"]) -> None:
        """A stride: its queries' rows over what is held and the stride itself, causal; then evict `stride` tokens."""
        before = len(self.held)
        self.held = np.append(self.held, positions)
        self.statistics.append(len(positions))
        for i, row in enumerate(rows.mean(axis=0)):
            self.statistics.see(row, before + i + 1)
        size = len(self.held)
        at = np.arange(size)
        guarded = (at >= size - self.tail) | (at < self.sinks)
        feasible = feasible_prefill(self.budget, self.stride, self.sinks, self.recent)
        gone = evicted(self.statistics.mean(), self.statistics.spread(), guarded, feasible, max(0, size - self.budget))
        stay = np.setdiff1d(at, gone)
        self.held = self.held[stay]
        self.statistics.take(stay)
