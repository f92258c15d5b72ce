"""LESS (arXiv 2402.09398): what is evicted is absorbed into H and a, and joined to the attention to what is held.

Readings of what is open:
- H, a and ψ of a KV head, φ of a query head; the paper's models have no groups.
- The eviction reads the softmax over what is held alone. A step attends before it evicts.
"""

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float
from scipy.special import erf

from .h2o import Decoding
from .softmax import softmax


def gelu(x: Float[np.ndarray, "*a"]) -> Float[np.ndarray, "*a"]:
    """x Φ(x)."""
    return x * (1 + erf(x / np.sqrt(2))) / 2


def phi(q: Float[np.ndarray, "g d"], maps: dict) -> Float[np.ndarray, "g r"]:
    """|gelu(gelu(q W1) W2)|, a query head's own maps."""
    return np.stack([np.abs(gelu(gelu(x @ up) @ down)) for x, up, down in zip(q, maps["up"], maps["down"], strict=True)])


def psi(k: Float[np.ndarray, "n d"], maps: dict) -> Float[np.ndarray, "n r"]:
    """|k' + (k' Wi) s2|, k' = |s1| gelu(gelu(k W1) W2)."""
    x = np.abs(maps["scale"]) * gelu(gelu(k @ maps["up"]) @ maps["down"])
    return np.abs(x + x @ maps["mix"] * maps["mix_scale"])


@dataclass
class Side:
    """a [r] and H [r d]."""

    a: np.ndarray
    h: np.ndarray

    def absorb(self, features: Float[np.ndarray, "n r"], v: Float[np.ndarray, "n d"]) -> None:
        self.a = self.a + features.sum(0)
        self.h = self.h + features.T @ v

    def out(self, z: Float[np.ndarray, "g n"], v: Float[np.ndarray, "n d"], features: Float[np.ndarray, "g r"]) -> np.ndarray:
        """(Σ e^{z_j} v_j + φ H) / (Σ e^{z_j} + φ·a)."""
        top = z.max(-1, keepdims=True)
        e, side = np.exp(z - top), np.exp(-top)
        return (e @ v + side * (features @ self.h)) / (e.sum(-1, keepdims=True) + side * (features @ self.a)[:, None])


class Head:
    """One KV head under H2O with a side state; keys are rotated."""

    def __init__(self, maps_q: dict, maps_k: dict, *, heavy: int, recent: int):
        self.rule, self.maps_q, self.maps_k = Decoding(heavy, recent), maps_q, maps_k

    def prefill(self, a: Float[np.ndarray, "g n n"], k: Float[np.ndarray, "n d"], v: Float[np.ndarray, "n d"]) -> None:
        """A prompt, of which `a` is the attention."""
        self.k, self.v = k.astype(np.float64), v.astype(np.float64)
        rank = self.maps_k["down"].shape[1]
        self.side = Side(np.zeros(rank), np.zeros((rank, v.shape[1])))
        self.rule.prefill(a)
        self._absorb(np.arange(len(k)))

    def step(self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "1 d"], v: Float[np.ndarray, "1 d"]) -> np.ndarray:
        """One token more; the output of its queries."""
        q, t = q.astype(np.float64), len(self.k)
        self.k, self.v = np.vstack([self.k, k]), np.vstack([self.v, v])
        held = np.append(self.rule.held, t)
        z = q @ self.k[held].T / np.sqrt(q.shape[1])
        out = self.side.out(z, self.v[held], phi(q, self.maps_q))
        self.rule.step(softmax(z), t)
        self._absorb(held)
        return out

    def _absorb(self, before: np.ndarray) -> None:
        gone = np.setdiff1d(before, self.rule.held)
        self.side.absorb(psi(self.k[gone], self.maps_k), self.v[gone])
