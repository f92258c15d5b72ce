"""R-KV (arXiv 2505.24133): tokens that are attended to and that no later token repeats.

Readings of what the sources leave open:
- A row without a near duplicate is left alone; the release writes a zero into its column 0 (`release_last`).
- The window's columns go before the attention's softmax, but take part in the redundancy's softmax.
- The redundancy is measured for each prompt by itself; the release reads the first of a batch.
- While decoding a step attends to everything held; the cut comes after it, of S >= b tokens, on the caller's word.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Bool, Float, Int

from .pooling import max_pool
from .softmax import softmax
from .top_k import top_k


def attention_part(q: Float[np.ndarray, "h g w d"], k: Float[np.ndarray, "h n d"], *, window: int, size: int = 7) -> np.ndarray:
    """u_a [h, n - window]: pool(mean over rows of softmax(max over the group of q k / sqrt(d))), the window cut before it."""
    z = np.einsum("hgwd,hnd->hgwn", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1])
    older = z.max(axis=1)[..., : k.shape[1] - window]
    return max_pool(softmax(older).mean(axis=1), size)


# ---- Redundancy: which entry of a row is forgiven


def last_duplicate(near: Bool[np.ndarray, "n"]) -> int | None:
    """The largest j with cos > tau; None without one."""
    return int(np.flatnonzero(near)[-1]) if near.any() else None


def release_last(near: Bool[np.ndarray, "n"]) -> int:
    """The release: column 0 where there is none."""
    return last_duplicate(near) or 0


def release_first(near: Bool[np.ndarray, "n"]) -> int:
    """The release's other direction, which finds column 0 in every row."""
    return 0


def column_similarity(k: Float[np.ndarray, "n d"], *, tau: float = 0.5, forgive: Callable = last_duplicate) -> np.ndarray:
    """Mean over rows of cos(k_i, k_j), diagonal 0, with one forgiven entry a row set to 0."""
    unit = k.astype(np.float64) / np.linalg.norm(k.astype(np.float64), axis=1, keepdims=True)
    cos = unit @ unit.T
    np.fill_diagonal(cos, 0.0)
    for row in cos:
        j = forgive(row > tau)
        if j is not None:
            row[j] = 0.0
    return cos.mean(axis=0)


def redundancy(k: Float[np.ndarray, "h n d"], *, tau: float = 0.5, forgive: Callable = last_duplicate) -> np.ndarray:
    """u_r [h, n]: softmax over all tokens of the column means."""
    return softmax(np.stack([column_similarity(head, tau=tau, forgive=forgive) for head in k]))


def scores(
    q: Float[np.ndarray, "h g w d"],
    k: Float[np.ndarray, "h n d"],
    *,
    window: int = 8,
    size: int = 7,
    weight: float = 0.1,
    tau: float = 0.5,
    forgive: Callable = last_duplicate,
) -> Float[np.ndarray, "h m"]:
    """u = weight u_a - (1 - weight) u_r for the tokens before the window."""
    u_a = attention_part(q, k, window=window, size=size)
    u_r = redundancy(k, tau=tau, forgive=forgive)[:, : u_a.shape[1]]
    return weight * u_a - (1 - weight) * u_r


def kept(u: Float[np.ndarray, "h m"], *, budget: int, window: int) -> Int[np.ndarray, "h k"]:
    """The top budget - window of the older tokens and the window, ascending."""
    older = u.shape[1]
    recent = np.arange(older, older + window)
    return np.stack([np.concatenate([top_k(row, budget - window), recent]) for row in u])


# ---- While decoding


@dataclass
class Layer:
    """One layer of one sequence: what it holds and the last `window` queries."""

    k: Float[np.ndarray, "h n d"]
    v: Float[np.ndarray, "h n d"]
    pos: Int[np.ndarray, "h n"]
    budget: int
    window: int = 8
    size: int = 7
    weight: float = 0.1
    tau: float = 0.5
    ring: list[np.ndarray] = field(default_factory=list)

    def step(self, q: Float[np.ndarray, "h g d"], k: Float[np.ndarray, "h d"], v: Float[np.ndarray, "h d"], at: int, cut: bool):
        """One token: held, attended to, then the cut. Returns the attention's output [h, g, d]."""
        self.k = np.concatenate([self.k, k[:, None]], axis=1)
        self.v = np.concatenate([self.v, v[:, None]], axis=1)
        self.pos = np.concatenate([self.pos, np.full((len(k), 1), at)], axis=1)
        self.ring = [*self.ring, q][-self.window :]
        rows = softmax(np.einsum("hgd,hnd->hgn", q, self.k) / np.sqrt(q.shape[-1]))
        out = np.einsum("hgn,hnd->hgd", rows, self.v)
        if cut and self.k.shape[1] >= self.budget:
            self._cut()
        return out

    def _cut(self) -> None:
        q = np.stack(self.ring, axis=2)
        u = scores(q, self.k, window=self.window, size=self.size, weight=self.weight, tau=self.tau)
        index = kept(u, budget=self.budget, window=self.window)
        self.k = np.take_along_axis(self.k, index[..., None], axis=1)
        self.v = np.take_along_axis(self.v, index[..., None], axis=1)
        self.pos = np.take_along_axis(self.pos, index, axis=1)
