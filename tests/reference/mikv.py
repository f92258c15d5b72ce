"""MiKV (arXiv 2402.18096): a share of the tokens exact, by importance and recency, all others in few bits, keys balanced.

b_c = sqrt(max_t |q_tc| / max_t |k_tc|), from the prompt; keys are coded as b ⊙ k. One KV head and its query heads. Where the
paper is silent: demotion is final; q is the largest of the group; importance is the sum of attention, averaged over the group.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from . import affine


def balancer(q: Float[np.ndarray, "g n d"], k: Float[np.ndarray, "n d"]) -> Float[np.ndarray, " d"]:
    """1 for a channel without keys or queries."""
    top_q, top_k = np.abs(q).max((0, 1)), np.abs(k).max(0)
    return np.where((top_q > 0) & (top_k > 0), np.sqrt(top_q / np.where(top_k > 0, top_k, 1)), 1.0)


def coded(x: Float[np.ndarray, "n d"], bits: int, group: int) -> Float[np.ndarray, "n d"]:
    """Every token by itself, to numbers again; steps and minima of 16 bits."""
    return affine.dequantise(affine.quantise(x, bits=bits, group=group, axis=1, store=np.float16))


def important(n: int, share: float) -> int:
    """floor(r n), with room for a share that is a rounded decimal."""
    return int(np.floor(n * share * (1 + 1e-6) + 1e-6))


def fraction(share: float, high: int, low: int, group: int) -> float:
    """Bits of 16 that a number takes: r · bits(high) + (1 - r)(low + 32 / g)."""
    of = lambda bits: 16 if bits == 16 else bits + 32 / group  # noqa: E731
    return (share * of(high) + (1 - share) * of(low)) / 16


@dataclass
class Mikv:
    """The cache of one KV head: all tokens in the order of the text, `exact` which of them are."""

    share: float
    low: int
    group: int
    k: Float[np.ndarray, "n d"] = field(default=None)
    v: Float[np.ndarray, "n d"] = field(default=None)
    score: Float[np.ndarray, " n"] = field(default=None)
    exact: Int[np.ndarray, " n"] = field(default=None)
    b: Float[np.ndarray, " d"] = field(default=None)

    def prompt(self, q: Float[np.ndarray, "g n d"], k, v, received: Float[np.ndarray, " n"]) -> None:
        """A prompt: its queries, and the attention each key received, averaged over the group."""
        self.k, self.v, self.score, self.b = k.copy(), v.copy(), received.copy(), balancer(q, k)
        self.exact = np.ones(len(k), bool)
        self.demote()

    def demote(self) -> None:
        """What is exact and not among the important is coded."""
        count = important(len(self.k), self.share)
        recent = important(count, 0.5)
        stays = np.arange(len(self.k)) >= len(self.k) - recent
        stays &= self.exact
        rest = np.flatnonzero(self.exact & ~stays)
        best = rest[np.lexsort((rest, -self.score[rest]))][: count - stays.sum()]
        stays[best] = True
        for j in np.flatnonzero(self.exact & ~stays):
            self.k[j] = coded(self.k[None, j] * self.b, self.low, self.group)[0] / self.b
            self.v[j] = coded(self.v[None, j], self.low, self.group)[0]
        self.exact = stays

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, " d"], v: Float[np.ndarray, " d"]):
        """(output, positions held) of one token: append, attend, then demote."""
        self.k, self.v = np.vstack([self.k, k]), np.vstack([self.v, v])
        self.score, self.exact = np.append(self.score, 0.0), np.append(self.exact, True)
        z = q @ self.k.T / np.sqrt(len(k))
        p = np.exp(z - z.max(-1, keepdims=True))
        p /= p.sum(-1, keepdims=True)
        out = p @ self.v
        self.score += p.mean(0)
        self.demote()
        return out, np.arange(len(self.k))
