"""InfLLM as a slow NumPy transcription: token by token, float64. Keys are un-rotated; `rotate(x, position)` turns them."""

from dataclasses import dataclass

import numpy as np

from tests.reference.softmax import softmax


def block_key(keys: np.ndarray, received: np.ndarray, count: int) -> tuple[list[int], np.ndarray]:
    """(which keys stand for a block, their mean); keys [block d]."""
    best = np.argsort(-received, kind="stable")[:count]
    return sorted(best.tolist()), keys[best].mean(0)


def relevance(q: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Σ over heads of mean query · block key: q [h d], keys [m h d]."""
    return np.array([sum(float(q[h] @ block[h]) for h in range(len(q))) for block in keys])


@dataclass
class Layer:
    """One layer of one sequence: query heads q = h·g, keys and values of their KV heads.

    Attributes:
        sizes: (local, initial, block, top, representatives).   rotate: the rotary embedding.
        k, v: [h, n, d] so far.   received: [q, n], mass received while local.
    """

    sizes: tuple[int, int, int, int, int]
    rotate: object
    k: np.ndarray
    v: np.ndarray
    received: np.ndarray

    @classmethod
    def empty(cls, sizes, rotate, heads, queries, d):
        return cls(sizes, rotate, np.zeros((heads, 0, d)), np.zeros((heads, 0, d)), np.zeros((queries, 0)))

    def extend(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, *, blocks: int | None = None) -> np.ndarray:
        """Outputs [q t d] of tokens that share a choice of blocks; no more than `blocks` blocks are there."""
        local, initial, block, top, count = self.sizes
        first, t = self.k.shape[1], k.shape[1]
        self.k, self.v = np.concatenate([self.k, k], 1), np.concatenate([self.v, v], 1)
        self.received = np.pad(self.received, ((0, 0), (0, t)))
        left = max(first - local - initial, 0) // block
        left = left if blocks is None else min(left, blocks)
        far = list(range(initial)) + list(range(initial + left * block, first + t)) + self._chosen(q, left)
        out = np.zeros((len(q), t, k.shape[2]))
        for i in range(t):
            p = first + i
            near = list(range(max(0, p - local + 1), p + 1))
            away = sorted({j for j in far if j <= p - local})
            for h in range(len(q)):
                keys, values = self.k[h // (len(q) // len(self.k))], self.v[h // (len(q) // len(self.v))]
                z = [self.rotate(q[h, i], p) @ self.rotate(keys[j], j) for j in near]
                z += [self.rotate(q[h, i], local) @ keys[j] for j in away]
                a = softmax(np.array(z) / np.sqrt(q.shape[2]))
                out[h, i] = a @ values[near + away]
                self.received[h, near] += a[: len(near)]
        return out

    def _chosen(self, q: np.ndarray, left: int) -> list[int]:
        """Tokens of the blocks that the mean query matches best."""
        local, initial, block, top, count = self.sizes
        if not left:
            return []
        group = len(q) // len(self.k)
        at = [range(initial + m * block, initial + (m + 1) * block) for m in range(left)]
        keys = np.array([[block_key(self.k[h // group][r], self.received[h, r], count)[1] for h in range(len(q))] for r in at])
        mean = np.array([np.mean([self.rotate(x, local) for x in head], axis=0) for head in q])
        best = np.argsort(-relevance(mean, keys), kind="stable")[:top]
        return [j for m in best for j in at[m]]
