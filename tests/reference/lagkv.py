"""LagKV (arXiv 2504.04704): a token matters if its channels spread unevenly in the range of the next block.

Readings of what the sources leave open:
- A channel that is constant over the next block would divide by zero: `eps` is added to every range.
- The official cache keeps int(ratio lag) tokens of every complete block but the last, sorted; sinks and tail are outside
  that count. All blocks of one compression are scored before any is cut.
- The press keeps one top-k over sinks (score 1), blocks and tail (score 1); without `cross` a block's scores are ranks / lag,
  ascending, so that blocks tie. A prompt shorter than sinks + 2 lag scores by position, its sinks first.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Int

from .softmax import softmax
from .top_k import top_k


def spread(x: Float[np.ndarray, "p lag d"], eps: float = 1e-6) -> Float[np.ndarray, "p-1 lag"]:
    """sigma = std over channels (d - 1) of (x - min) / (max - min + eps), min and max over the tokens of the next block."""
    out = []
    for block, following in zip(x[:-1].astype(np.float64), x[1:].astype(np.float64), strict=True):
        low, high = following.min(axis=0), following.max(axis=0)
        out.append(((block - low) / (high - low + eps)).std(axis=1, ddof=1))
    return np.array(out).reshape(len(x) - 1, x.shape[1])


def blocks(x: Float[np.ndarray, "n d"], start: int, lag: int) -> Float[np.ndarray, "p lag d"]:
    """The complete blocks of `lag` tokens from `start` on."""
    count = max(0, len(x) - start) // lag
    return x[start : start + count * lag].reshape(count, lag, x.shape[1])


def block_scores(
    k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"], start: int, lag: int, eps: float = 1e-6
) -> tuple[Float[np.ndarray, "p lag"], Float[np.ndarray, "p lag"]]:
    """(s_K, s_V): the spreads' softmax inside each block that has a next one."""
    return softmax(spread(blocks(k, start, lag), eps)), softmax(spread(blocks(v, start, lag), eps))


# ---- The official cache


@dataclass
class Head:
    """One KV head of the official cache: what it holds and where the part not compressed yet begins."""

    k: np.ndarray
    v: np.ndarray
    pos: np.ndarray
    base: int


@dataclass
class LagCache:
    """One layer of one sequence. `ratio` is the share KEPT of every block."""

    heads: list[Head]
    lag: int
    ratio: float
    value_weight: float = 1.0
    eps: float = 1e-6

    def append(self, k: Float[np.ndarray, "h c d"], v: Float[np.ndarray, "h c d"]) -> None:
        """The tokens of one call, which attends to everything held before `compress`."""
        for head, key, value in zip(self.heads, k, v, strict=True):
            first = head.pos[-1] + 1 if len(head.pos) else 0
            head.k, head.v = np.concatenate([head.k, key]), np.concatenate([head.v, value])
            head.pos = np.concatenate([head.pos, np.arange(first, first + len(key))])

    def compress(self) -> None:
        """Once a head holds base + 2 lag or more: every complete block but the last is cut, base moves behind the kept."""
        for head in self.heads:
            if len(head.k) >= head.base + 2 * self.lag:
                self._cut(head)

    def _cut(self, head: Head) -> None:
        s_k, s_v = block_scores(head.k, head.v, head.base, self.lag, self.eps)
        stay = list(range(head.base))
        for p, u in enumerate(s_k + self.value_weight * s_v):
            best = top_k(u, int(self.ratio * self.lag))
            stay.extend(head.base + p * self.lag + best)
        tail = np.arange(head.base + len(s_k) * self.lag, len(head.k))
        head.base = len(stay)
        index = np.concatenate([np.array(stay, int), tail])
        head.k, head.v, head.pos = head.k[index], head.v[index], head.pos[index]


def lag_cache(heads: int, d: int, *, sinks: int = 16, lag: int = 1024, ratio: float = 0.5, **more) -> LagCache:
    """An empty cache."""
    empty = [Head(np.zeros((0, d)), np.zeros((0, d)), np.zeros(0, int), sinks) for _ in range(heads)]
    return LagCache(empty, lag, ratio, **more)


def official(
    k: Float[np.ndarray, "h n d"], v: Float[np.ndarray, "h n d"], *, sinks: int, lag: int, ratio: float, eps: float = 1e-6
) -> list[Int[np.ndarray, "k"]]:
    """Kept positions of each head after the prompt came in one call."""
    cache = lag_cache(len(k), k.shape[-1], sinks=sinks, lag=lag, ratio=ratio, eps=eps)
    cache.append(k, v)
    cache.compress()
    return [head.pos for head in cache.heads]


# ---- The press


def press_scores(
    k: Float[np.ndarray, "h n d"],
    v: Float[np.ndarray, "h n d"],
    *,
    sinks: int = 4,
    lag: int = 128,
    cross: bool = False,
    eps: float = 1e-6,
) -> Float[np.ndarray, "h n"]:
    """u = (s_K + s_V) / 2, or its rank in the block / lag; sinks and the last lag + (n - sinks) mod lag tokens get 1."""
    n = k.shape[1]
    if n < sinks + 2 * lag:
        short = np.where(np.arange(n) < sinks, 1.0, np.arange(n) / n)
        return np.tile(short, (len(k), 1))
    out = np.ones((len(k), n))
    for h in range(len(k)):
        s_k, s_v = block_scores(k[h], v[h], sinks, lag, eps)
        u = (s_k + s_v) / 2
        if not cross:
            u = u.argsort(axis=1, kind="stable").argsort(axis=1, kind="stable") / lag
        out[h, sinks : sinks + u.size] = u.ravel()
    return out
