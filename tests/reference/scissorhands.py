"""Scissorhands (arXiv 2305.17118): tokens that get less than a uniform share most often go, many at once.

Readings of what is open (no official code; the formulas are from memory of the paper):
- Attention is averaged over the group before it is compared.
- A row at position q counts for the tokens it could see; prompt rows count, among the last w.
- The drop happens where more than b are held. m tokens go; from a longer prompt, all that are too many.
- The last r count as never below: with ties dropped oldest first they are the last to go, and stay while m <= S - r.
- Equal counts: the oldest goes first. This is the opposite of the rule elsewhere, where the lower position stays.
- `counts_since` is the other state: a count that starts anew at each drop. It is the same where drops are w rows apart.
- Every layer has the same budget; the paper gives later layers more.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int


def below(row: Float[np.ndarray, "s"]) -> Int[np.ndarray, "s"]:
    """1 where A < 1 / S."""
    return (row < 1 / len(row)).astype(int)


def dropped(counts: Int[np.ndarray, "s"], m: int, recent: int) -> Int[np.ndarray, "m"]:
    """Indices of the m highest counts, the last `recent` counting 0, ties to the oldest; ascending."""
    counts = counts.copy()
    counts[max(len(counts) - recent, 0) :] = 0
    return np.sort(np.argsort(-counts, kind="stable")[:m])


@dataclass
class Row:
    """One query's attention over what it saw."""

    positions: Int[np.ndarray, "s"]
    a: Float[np.ndarray, "s"]


@dataclass
class Decoding:
    """One KV head with the last w rows of attention; m is half the budget unless given."""

    budget: int
    window: int = 400
    recent: int = 10
    m: int | None = None
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    rows: list[Row] = field(default_factory=list)
    since: np.ndarray = field(default_factory=lambda: np.zeros(0, int))

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None:
        for t in range(a.shape[-1]):
            self.see(a[:, t, : t + 1], t)
        self.drop()

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        self.see(a, t)
        self.drop()

    def see(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        """One row over what is held and the new token."""
        self.held, self.since = np.append(self.held, t), np.append(self.since, 0)
        row = Row(self.held, a.mean(axis=0))
        self.rows = [*self.rows, row][-self.window :]
        self.since = self.since + below(row.a)

    def counts(self) -> Int[np.ndarray, "s"]:
        """I[k]: in how many of the last w rows that saw k it was below uniform."""
        out = np.zeros(len(self.held), int)
        for row in self.rows:
            low = row.positions[below(row.a) == 1]
            out += np.isin(self.held, low)
        return out

    def counts_since(self) -> Int[np.ndarray, "s"]:
        """The same over the rows since the last drop."""
        return self.since

    def drop(self) -> None:
        """m tokens, or as many as are too many, where more than the budget are held."""
        excess = len(self.held) - self.budget
        if excess > 0:
            m = self.budget // 2 if self.m is None else self.m
            gone = dropped(self.counts(), max(m, excess), self.recent)
            stay = np.setdiff1d(np.arange(len(self.held)), gone)
            self.held, self.since = self.held[stay], np.zeros(len(stay), int)
