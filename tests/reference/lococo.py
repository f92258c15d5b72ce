"""LoCoCo (arXiv 2406.05317): a cache of M slots, of which M_c mix what is not heavy by a convolution along the tokens.

Readings of what the sources leave open:
- Slots lie as [heavy | mixed | newer tokens]; the convolution runs over what is not heavy, in that order.
- Heavy are the last `recent` tokens and the M - M_c - recent best others by the scores of the last reading alone.
- A mixture takes the place (and here the position) of the token its one-hot row picks, and may be heavy or mixed again later.
- Query heads of a group: their mean attention; one convolution for all heads.
- A prompt is read whole; the cache is cut when it holds more than M + buffer slots, after the token's own attention.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax


def convolution(
    x: Float[np.ndarray, "n c"], kernel: Float[np.ndarray, "m c w"], bias: Float[np.ndarray, "m"]
) -> Float[np.ndarray, "m n"]:
    """relu of a cross-correlation of the same length, zeros outside."""
    n, half = len(x), kernel.shape[2] // 2
    out = np.zeros((len(kernel), n))
    for r in range(len(kernel)):
        for i in range(n):
            out[r, i] = bias[r]
            for j in range(kernel.shape[2]):
                if 0 <= i + j - half < n:
                    out[r, i] += kernel[r, :, j] @ x[i + j - half]
    return np.maximum(out, 0)


def mixing(
    k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"], rows: Int[np.ndarray, "m"], kernel, bias, gamma: float
) -> Float[np.ndarray, "m n"]:
    """W = (1 - gamma) O + gamma softmax(conv([k v]))."""
    w = softmax(convolution(np.concatenate([k, v], axis=1), kernel[: len(rows)], bias[: len(rows)]))
    return (1 - gamma) * np.eye(len(k))[rows] + gamma * w


@dataclass
class Head:
    """One KV head of one layer."""

    k: Float[np.ndarray, "n d"]
    v: Float[np.ndarray, "n d"]
    size: int
    kernel: np.ndarray
    bias: np.ndarray
    gamma: float
    buffer: int = 16
    recent: int = 0

    def __post_init__(self) -> None:
        self.k, self.v = self.k.astype(float), self.v.astype(float)
        self.pos = np.arange(len(self.k))
        self.told = len(self.k)

    def start(self, rows: Float[np.ndarray, "g n n"]) -> None:
        if len(self.k) > self.size:
            self.compress(rows.mean(axis=0).sum(axis=0))

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"]) -> np.ndarray:
        self.k, self.v, self.pos = np.vstack([self.k, k]), np.vstack([self.v, v]), np.append(self.pos, self.told)
        self.told += 1
        rows = softmax(q.astype(float) @ self.k.T / np.sqrt(len(k)))
        out = rows @ self.v
        if len(self.k) > self.size + self.buffer:
            self.compress(rows.mean(axis=0))
        return out

    def compress(self, score: Float[np.ndarray, "n"]) -> None:
        n, mixtures = len(self.k), min(len(self.kernel), self.size)
        last = [j for j in range(n) if self.pos[j] >= self.told - self.recent]
        best = sorted((j for j in range(n) if j not in last), key=lambda j: (-score[j], self.pos[j]))
        heavy = sorted([*last, *best[: self.size - mixtures - len(last)]])
        rest = [j for j in range(n) if j not in heavy]
        picked = sorted(sorted(rest, key=lambda j: (-score[j], self.pos[j]))[:mixtures])
        w = mixing(self.k[rest], self.v[rest], np.searchsorted(rest, picked), self.kernel, self.bias, self.gamma)
        self.k, self.v = (np.vstack([x[heavy], w @ x[rest]]) for x in (self.k, self.v))
        self.pos = np.concatenate([self.pos[heavy], self.pos[picked]])
