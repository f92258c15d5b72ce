"""FastGen (arXiv 2310.01801): every head gets the first rule of a list that recovers enough of its prompt attention.

Readings of what is open:
- `extent` is the length that the fractions refer to: the prompt's n, or n and all that will be generated. The release scores
  with n and fills with the whole length; here both are the caller's choice.
- Masks are not causal, the attention is. Heavy columns are chosen among those off in the last row, and are on in every row.
- No rule recovers enough: the first is taken, as the release's argmax does. "full" in the list prevents it.
- int for the window's width in masks, ceil for heavy columns, round (half to even) while decoding, as in the release.
- A new token takes its place before it attends. One that finds no place is seen by itself, and stored nowhere.
- A token's score is its mean over the last 400 observations; the prompt's column means are one of them.
- Of equal scores the later token is overwritten. Punctuation that is generated raises the budget by its own slot.
- One rule for each KV head, from the group's mean attention.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from .highest import floor_share, highest_of


@dataclass(frozen=True)
class Strategy:
    """Which parts a rule has. Global and special tokens are in every rule; full has everything."""

    punctuation: bool = False
    heavy: float = 0.0
    window: float = 0.0
    full: bool = False


def paper_list(heavy: float = 0.3, window: float = 0.3) -> list[Strategy]:
    """special; + punctuation; + heavy hitters; + window; full."""
    return [
        Strategy(),
        Strategy(punctuation=True),
        Strategy(punctuation=True, heavy=heavy),
        Strategy(punctuation=True, heavy=heavy, window=window),
        Strategy(full=True),
    ]


def column_means(a: Float[np.ndarray, "h n n"]) -> Float[np.ndarray, "h n"]:
    """cum[k] = sum_q A[q, k] / (n - k)."""
    n = a.shape[-1]
    return a.sum(axis=1) / (n - np.arange(n))


def occurrences(tokens: Int[np.ndarray, "n"], sequence: list[int]) -> Bool[np.ndarray, "n"]:
    """Positions inside an exact occurrence of the sequence."""
    out, size = np.zeros(len(tokens), bool), len(sequence)
    for i in range(len(tokens) - size + 1):
        if list(tokens[i : i + size]) == list(sequence):
            out[i : i + size] = True
    return out


@dataclass
class Prompt:
    """Group-mean attention of a prompt's KV heads and its kinds of token."""

    a: Float[np.ndarray, "h n n"]
    special: Bool[np.ndarray, "n"]
    punctuation: Bool[np.ndarray, "n"]
    global_tokens: int = 4

    def mask(self, rule: Strategy, extent: int) -> Bool[np.ndarray, "h n n"]:
        """M of one rule: what every query of every head would see."""
        h, n = self.a.shape[:2]
        at = np.arange(n)
        columns = (at < self.global_tokens) | self.special
        columns = columns | self.punctuation if rule.punctuation else columns
        mask = np.tile(columns, (h, n, 1))
        if rule.window:
            width = max(1, floor_share(extent, rule.window))
            mask |= (at[None] > at[:, None] - width) & (at[None] <= at[:, None])
        if rule.heavy:
            self.add_heavy(mask, rule.heavy * extent)
        return np.ones((h, n, n), bool) if rule.full else mask

    def add_heavy(self, mask: Bool[np.ndarray, "h n n"], wanted: float) -> None:
        """Top ceil(min(wanted, #available)) column means among columns off in the last row of the first head."""
        available = ~mask[0, -1]
        count = int(np.ceil(min(wanted, available.sum()) - 1e-9))
        for head, cum in zip(mask, column_means(self.a), strict=True):
            head[:, highest_of(cum, count, available)] = True

    def recovery(self, rules: list[Strategy], extent: int) -> Float[np.ndarray, "r h"]:
        """Mean over the queries of the attention that each rule's mask keeps."""
        return np.stack([(self.a * self.mask(rule, extent)).sum(axis=2).mean(axis=1) for rule in rules])

    def choose(self, rules: list[Strategy], threshold: float, extent: int) -> Int[np.ndarray, "h"]:
        """The first rule with recovery >= threshold; the first of all where none has it."""
        return (self.recovery(rules, extent) >= threshold).argmax(axis=0)

    def kept(self, rules: list[Strategy], chosen: Int[np.ndarray, "h"], extent: int) -> list[Int[np.ndarray, "k"]]:
        """The last row of each head's mask."""
        return [np.flatnonzero(self.mask(rules[i], extent)[h, -1]) for h, i in enumerate(chosen)]


@dataclass
class Decoding:
    """One KV head under its rule; `kinds` are the positions that never go, `extent` prompt and generated tokens together."""

    rule: Strategy
    held: Int[np.ndarray, "s"]
    kinds: set[int]
    budget: int
    extent: int
    cum: Float[np.ndarray, "n"]
    history: int = 400
    seen: dict[int, list[float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.seen = {int(j): [self.cum[j]] for j in self.held}

    def arrive(self, t: int, punctuation: bool) -> Int[np.ndarray, "s"]:
        """Find a place for a token; answers what it attends to."""
        kept_kind = punctuation and self.rule.punctuation
        if kept_kind:
            self.kinds, self.budget = self.kinds | {t}, self.budget + 1
        victim = None if self.rule.full or len(self.held) < self.budget else self.victim(t)
        if victim is None and len(self.held) >= self.budget and not self.rule.full:
            return np.append(self.held, t)
        if victim is not None:
            self.held = self.held[self.held != victim]
            del self.seen[victim]
        self.held, self.seen[t] = np.append(self.held, t), []
        return self.held

    def victim(self, t: int) -> int | None:
        """The lowest mean (or the oldest, in a rule of windows alone) that is not of a kept kind or recent."""
        if not (self.rule.heavy or self.rule.window):
            return None
        recent = t - round(self.rule.window * self.extent)
        free = [int(j) for j in self.held if j not in self.kinds and not (self.rule.window and j > recent)]
        if not self.rule.heavy:
            return min(free, default=None)
        return min(free, key=lambda j: (np.mean(self.seen[j]), -j), default=None)

    def see(self, a: Float[np.ndarray, "g s"], attended: Int[np.ndarray, "s"]) -> None:
        """One row: an observation more for everything stored."""
        for j, p in zip(attended.tolist(), a.mean(axis=0), strict=True):
            if j in self.seen:
                self.seen[j] = [*self.seen[j], p][-self.history :]


def decoding(prompt: Prompt, head: int, rule: Strategy, new: int) -> Decoding:
    """A head after its prompt, `new` tokens to come; budget g + specials + punctuation + round of each share of the length."""
    n = prompt.a.shape[1]
    extent = n + new
    kinds = (np.arange(n) < prompt.global_tokens) | prompt.special | (prompt.punctuation & rule.punctuation)
    counted = prompt.global_tokens + int(prompt.special.sum()) + (int(prompt.punctuation.sum()) if rule.punctuation else 0)
    budget = counted + round(rule.window * extent) + round(rule.heavy * extent)
    held = np.flatnonzero(prompt.mask(rule, extent)[head, -1])
    return Decoding(rule, held, set(np.flatnonzero(kinds).tolist()), budget, extent, column_means(prompt.a)[head])
