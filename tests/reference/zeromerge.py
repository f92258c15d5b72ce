"""ZeroMerge (arXiv 2503.10714): dense slots average what is evicted and say by a logit bias how many tokens they hold.

Slots lie as [dense | top | ring]. Readings of what the sources leave open:
- Prompt scores shrink as decoded ones do: a row i of n weighs shrink^(n - 1 - i).
- The tail's oldest token belongs to the top part once decoding starts, so the ring has tail - 1 slots.
- A step attends to all slots and its own token, adds its row to the scores, and only then merges.
- A dense slot's score is the maximum (or the sum) over what it holds, also when it takes another one.
- A prompt within the budget is held as it is, and so are the tokens that fill it up: its first slots are the dense ones, its last
  the ring, as released.
- Query heads of a group are summed into one score.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax


def split(budget: int, *, tail_share: float = 0.1, dense: int = 1) -> tuple[int, int, int]:
    """(dense, top, tail) slots of a budget; the tail is a tenth, at least 2."""
    tail = max(2, int(budget * tail_share))
    return dense, budget - tail - dense, tail


def prompt_scores(rows: Float[np.ndarray, "g n n"], shrink: float = 0.98) -> Float[np.ndarray, "n"]:
    """sum_i shrink^(n - 1 - i) A[i, j], summed over the group."""
    n = rows.shape[-1]
    return np.einsum("i,gij->j", shrink ** np.arange(n - 1, -1, -1.0), rows)


def runs(count: int, groups: int) -> list[int]:
    """Lengths of `groups` consecutive runs; the first count mod groups are one longer."""
    return [count // groups + (i < count % groups) for i in range(groups)]


def largest_dot(key: Float[np.ndarray, "d"], dense: Float[np.ndarray, "m d"]) -> int:
    return int((dense @ key).argmax())


def smallest_distance(key: Float[np.ndarray, "d"], dense: Float[np.ndarray, "m d"]) -> int:
    return int(((dense - key) ** 2).sum(axis=1).argmin())


@dataclass
class Head:
    """One KV head: keys, values, counts, scores; the position of a slot that holds one token, else -1."""

    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    s: Float[np.ndarray, "n"]
    dense: int
    top: int
    tail: int
    shrink: float = 0.98
    nearest: Callable = largest_dot
    together: Callable = max
    c: np.ndarray = field(init=False)
    pos: Int[np.ndarray, "n"] = field(init=False)
    seen: int = field(init=False)
    cursor: int = 0

    def __post_init__(self) -> None:
        self.k, self.v, self.s = (x.astype(np.float64) for x in (self.k, self.v, self.s))
        self.seen, self.c, self.pos = len(self.k), np.ones(len(self.k)), np.arange(len(self.k))
        if self.seen > self.dense + self.top + self.tail:
            self._start()

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"]) -> np.ndarray:
        """One token: joined, attended to with + ln c, scores updated, then one slot merged. Returns the output [g, d]."""
        self.k, self.v = np.vstack([self.k, k]), np.vstack([self.v, v])
        self.c, self.pos = np.append(self.c, 1.0), np.append(self.pos, self.seen)
        rows = softmax(q @ self.k.T / np.sqrt(len(k)) + np.log(self.c))
        out = rows @ self.v
        self.s = np.append(self.s, 0.0) * self.shrink + rows.sum(axis=0)
        self.seen += 1
        if len(self.k) > self.dense + self.top + self.tail:
            self._insert()
        return out

    def _start(self) -> None:
        """The last `tail` stay, the `top` best of the others stay by descending score, the rest is averaged in runs."""
        older = list(range(len(self.k) - self.tail))
        best = sorted(older, key=lambda j: (-self.s[j], j))[: self.top]
        rest, groups = [j for j in older if j not in best], []
        for length in runs(len(rest), self.dense):
            groups.append(rest[:length])
            rest = rest[length:]
        single = [*best, *range(len(self.k) - self.tail, len(self.k))]
        score = [self.together(self.s[g].tolist()) for g in groups]
        self.k = np.stack([*(self.k[g].mean(axis=0) for g in groups), *self.k[single]])
        self.v = np.stack([*(self.v[g].mean(axis=0) for g in groups), *self.v[single]])
        self.c = np.array([*(len(g) for g in groups), *(1 for _ in single)], float)
        self.s, self.pos = np.array([*score, *self.s[single]]), np.array([*(-1 for _ in groups), *single])

    def _insert(self) -> None:
        """The ring's oldest token takes the weakest top slot, whose token is merged; the new one takes its place."""
        new, ring = len(self.k) - 1, len(self.k) - self.tail
        self.pos[: self.dense] = -1
        leaving = ring + self.cursor
        weakest = self.dense + int(self.s[self.dense : ring].argmin())
        self._merge(weakest)
        for x in (self.k, self.v, self.s, self.pos):
            x[weakest] = x[leaving]
            x[leaving] = x[new]
        self.k, self.v, self.s, self.c, self.pos = (x[:new] for x in (self.k, self.v, self.s, self.c, self.pos))
        self.cursor = (self.cursor + 1) % (self.tail - 1)

    def _merge(self, slot: int) -> None:
        """The nearest dense slot takes one more token: means weighted by counts."""
        j = self.nearest(self.k[slot], self.k[: self.dense])
        for x in (self.k, self.v):
            x[j] = (self.c[j] * x[j] + x[slot]) / (self.c[j] + 1)
        self.s[j] = self.together([self.s[j], self.s[slot]])
        self.c[j] += 1
