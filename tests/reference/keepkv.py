"""KeepKV (arXiv 2504.09936): evicted tokens are merged into their most similar kept one, weighted by votes and raw attention.

Readings of what the sources leave open:
- The mean of exp(z) runs over those of the last `window` queries that could see the slot; z is without ln c and unshifted.
- eps is the smallest normal float16, as released.
- A merged slot's recorded exponentials become means weighted by votes, its votes add up.
- A slot's score is the sum of its recorded exponentials, the oldest query's counted 1 and linearly up to `newest` for the
  newest one, without votes, as released; a query that could not see the slot adds nothing.
- The victim is the lowest score outside sinks and the last `recent`, ties to the lower slot; the targets are all others.
- The merged keys are plain weighted means: the mass is not preserved (`exact_logit` says what would).
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float

from .softmax import softmax

EPS = float(np.finfo(np.float16).tiny)


def scores(seen: Float[np.ndarray, "w n"], window: int, newest: float) -> Float[np.ndarray, "n"]:
    """Of exponentials, the newest query's last; where there are fewer than `window` queries the older ones are missing."""
    return np.linspace(1.0, newest, window)[window - len(seen) :] @ np.nan_to_num(seen)


def weight(votes: float, mass: float, eps: float = EPS) -> float:
    """w = c (mean exp(z) + eps)."""
    return votes * (mass + eps)


def combined(x: Float[np.ndarray, "d"], y: Float[np.ndarray, "d"], w_x: float, w_y: float) -> Float[np.ndarray, "d"]:
    return (w_x * x + w_y * y) / (w_x + w_y)


def exact_logit(masses: list[float], votes: list[float]) -> float:
    """The z for which (sum c) exp(z) = sum c exp(z_i): the paper's zero perturbation."""
    return float(np.log(np.dot(masses, votes) / np.sum(votes)))


def nearest(key: Float[np.ndarray, "d"], keys: Float[np.ndarray, "n d"]) -> tuple[int, float]:
    """(row, cosine) of the most similar key, ties to the lower row."""
    cos = keys @ key / (np.linalg.norm(keys, axis=1) * np.linalg.norm(key))
    return int(cos.argmax()), float(cos.max())


@dataclass
class Head:
    """One head. `seen` holds exp(z) of the last `window` queries, NaN where a query could not see the slot."""

    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    budget: int
    threshold: float
    window: int = 8
    sinks: int = 4
    recent: int = 8
    newest: float = 1.2
    eps: float = EPS

    def __post_init__(self) -> None:
        n = len(self.k)
        self.c, self.pos = np.ones(n), np.arange(n)
        self.seen, self.told = np.full((0, n), np.nan), n

    def start(self, q: Float[np.ndarray, "n d"]) -> None:
        """The prompt's queries, then evictions down to the budget."""
        n = len(self.k)
        z = np.where(np.tri(n, dtype=bool), q @ self.k.T / np.sqrt(q.shape[1]), -np.inf)
        self.seen = np.where(np.isfinite(z), np.exp(z), np.nan)[-self.window :]
        self._shrink()

    def step(self, q: Float[np.ndarray, "d"], k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"]) -> Float[np.ndarray, "d"]:
        """One token: joined, attended to with + ln c, recorded, then evictions. Returns the output."""
        self.k, self.v = np.vstack([self.k, k]), np.vstack([self.v, v])
        self.c, self.pos = np.append(self.c, 1.0), np.append(self.pos, self.told)
        self.seen = np.hstack([self.seen, np.full((len(self.seen), 1), np.nan)])
        self.told += 1
        z = self.k @ q / np.sqrt(len(q))
        self.seen = np.vstack([self.seen, np.exp(z)])[-self.window :]
        out = softmax(z + np.log(self.c)) @ self.v
        self._shrink()
        return out

    def scores(self) -> Float[np.ndarray, "n"]:
        return scores(self.seen, self.window, self.newest)

    def _shrink(self) -> None:
        while len(self.k) > self.budget:
            e = self.sinks + int(self.scores()[self.sinks : len(self.k) - self.recent].argmin())
            self._merge(e)
            stay = np.arange(len(self.k)) != e
            self.k, self.v, self.c, self.pos = (x[stay] for x in (self.k, self.v, self.c, self.pos))
            self.seen = self.seen[:, stay]

    def _merge(self, e: int) -> None:
        others = np.flatnonzero(np.arange(len(self.k)) != e)
        j, cos = nearest(self.k[e], self.k[others])
        if cos < self.threshold:
            return
        r = others[j]
        w_r, w_e = (weight(self.c[i], np.nanmean(self.seen[:, i]), self.eps) for i in (r, e))
        self.k[r] = combined(self.k[r], self.k[e], w_r, w_e)
        self.v[r] = combined(self.v[r], self.v[e], w_r, w_e)
        both = combined(self.seen[:, r], self.seen[:, e], self.c[r], self.c[e])
        self.seen[:, r] = np.where(np.isnan(both), np.fmax(self.seen[:, r], self.seen[:, e]), both)
        self.c[r] += self.c[e]


@dataclass
class GroupHead(Head):
    """A KV head of several query heads: rows and exponentials are means over them; what a prompt evicts is merged all together."""

    def start(self, q: Float[np.ndarray, "g n d"]) -> None:
        n = len(self.k)
        z = np.where(np.tri(n, dtype=bool), q @ self.k.T / np.sqrt(q.shape[-1]), -np.inf)
        self.seen = np.where(np.tri(n, dtype=bool), np.exp(z).mean(axis=0), np.nan)[-self.window :]
        if n > self.budget:
            self._together()

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"]) -> Float[np.ndarray, "g d"]:
        self.k, self.v = np.vstack([self.k, k]), np.vstack([self.v, v])
        self.c, self.pos = np.append(self.c, 1.0), np.append(self.pos, self.told)
        self.seen = np.hstack([self.seen, np.full((len(self.seen), 1), np.nan)])
        self.told += 1
        z = q @ self.k.T / np.sqrt(q.shape[-1])
        self.seen = np.vstack([self.seen, np.exp(z).mean(axis=0)])[-self.window :]
        out = softmax(z + np.log(self.c)) @ self.v
        self._shrink()
        return out

    def _together(self) -> None:
        """All but the sinks, the last tokens and the best others, each into its nearest of these."""
        n = len(self.k)
        u = self.scores()
        middle = sorted(range(self.sinks, n - self.recent), key=lambda j: (-u[j], j))
        keep = sorted([*range(self.sinks), *middle[: self.budget - self.sinks - self.recent], *range(n - self.recent, n)])
        members = {r: [r] for r in keep}
        for e in set(range(n)) - set(keep):
            j, cos = nearest(self.k[e], self.k[keep])
            if cos >= self.threshold:
                members[keep[j]].append(e)
        groups = [np.array(members[r]) for r in keep]
        w = [np.array([weight(self.c[i], np.nanmean(self.seen[:, i]), self.eps) for i in group]) for group in groups]
        self.k, self.v = (np.stack([u @ x[i] / u.sum() for u, i in zip(w, groups, strict=True)]) for x in (self.k, self.v))
        self.seen = np.stack([self._mean_seen(i) for i in groups], axis=1)
        self.c, self.pos = np.array([self.c[i].sum() for i in groups]), np.array(keep)

    def _mean_seen(self, group: np.ndarray) -> Float[np.ndarray, "w"]:
        """Means weighted by votes over those a query could see; NaN where it saw none."""
        out = np.full(len(self.seen), np.nan)
        for t, row in enumerate(self.seen):
            some = group[~np.isnan(row[group])]
            if len(some):
                out[t] = self.c[some] @ row[some] / self.c[some].sum()
        return out
