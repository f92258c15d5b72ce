"""DMS (arXiv 2506.05345): token i + 1 decides whether token i goes, which happens when i is more than `window` tokens old.

A query q sees an evicted key k while q - k <= window; while training, what is older gets ln(1 - p), p = σ(ℓ / τ) of the noisy
logit ℓ. The last token's logit is 0: nothing has judged it. The release's cache is built for window + 1, and hides a key of that
age.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from .held import Held
from .softmax import softmax


def logit(x: Float[np.ndarray, "n e"], weights: dict, scale: float = 100.0, offset: float = 5.0, eps: float = 1e-6) -> np.ndarray:
    """scale (rms(x) W + b) - offset, [n, h]."""
    normed = x / np.sqrt((x**2).mean(-1, keepdims=True) + eps) * weights["norm"]["scale"]
    return scale * (normed @ weights["alpha"]["kernel"] + weights["alpha"]["bias"]) - offset


def governing(emitted: Float[np.ndarray, "*h n"]) -> Float[np.ndarray, "*h n"]:
    """What the next token emits, 0 for the last."""
    return np.concatenate([emitted[..., 1:], np.zeros_like(emitted[..., :1])], -1)


def visible(evicted: Bool[np.ndarray, "*h n"], window: int) -> Bool[np.ndarray, "*h n n"]:
    """Which keys each query sees in full."""
    age = np.subtract.outer(np.arange(evicted.shape[-1]), np.arange(evicted.shape[-1]))
    return (age >= 0) & (~evicted[..., None, :] | (age <= window))


def penalty(logit: Float[np.ndarray, "*a"]) -> Float[np.ndarray, "*a"]:
    """ln(1 - σ(ℓ))."""
    return -np.logaddexp(0.0, logit)


def hidden_from(evicted: Bool[np.ndarray, "*h n"], window: int) -> Int[np.ndarray, "*h n"]:
    """The first query of the prompt that does not see a key; the prompt's length where all do."""
    n = evicted.shape[-1]
    return np.where(evicted, np.minimum(np.arange(n) + window + 1, n), n)


def serve(q: Float[np.ndarray, "h g n d"], k: Float[np.ndarray, "h n d"], v: Float[np.ndarray, "h n d"], evicted, window: int):
    """Attention of a prompt under the delayed mask."""
    z = np.einsum("hgtd,hnd->hgtn", q, k) / np.sqrt(q.shape[-1])
    return softmax(np.where(visible(evicted, window)[:, None], z, -np.inf)) @ v[:, None]


def train(q, k, v, logits: Float[np.ndarray, "h n"], window: int) -> Float[np.ndarray, "h g n d"]:
    """Attention of a text while training: every key is seen, old ones less by ln(1 - p)."""
    z = np.einsum("hgtd,hnd->hgtn", q, k) / np.sqrt(q.shape[-1])
    age = np.subtract.outer(np.arange(z.shape[-1]), np.arange(z.shape[-1]))
    bias = np.where(age > window, penalty(logits)[:, None, :], 0.0)
    return softmax(np.where(age >= 0, z + bias[:, None], -np.inf)) @ v[:, None]


def ratio(step: int) -> float:
    """The compression asked for at a step: 1 at the start, 16 at step 510."""
    return 1 + 15 * step / 510


def hinge(evicted: Float[np.ndarray, " l"], target: float) -> float:
    """max(0, target - mean share evicted)."""
    return max(0.0, target - evicted.mean())


class Head:
    """One KV head: after every piece what is evicted and can be seen by no later query goes."""

    def __init__(self, d: int, *, window: int):
        self.held, self.logits, self.window = Held.empty(d), np.zeros(0), window

    def extend(self, q, k, v, emitted: Float[np.ndarray, " c"]):
        """(output, positions held afterwards); a piece is read before anything of it goes."""
        out = self.held.extend(q, k, v)
        if len(self.logits):
            self.logits[-1] = emitted[0]
        self.logits = np.append(self.logits, governing(emitted))
        stays = (self.logits <= 0) | (self.held.seen - self.held.pos <= self.window)
        self.held.keep(stays)
        self.logits = self.logits[stays]
        return out, self.held.pos
