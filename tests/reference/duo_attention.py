"""DuoAttention (arXiv 2410.10819): heads that keep everything and heads that keep the first and the most recent tokens.

Which is which is fixed offline by one number a KV head. Positions stay true. Where the sources leave room:

- A streaming head attends to what it holds and to the tokens just appended, and is cut afterwards (as released). So one step
  sees sinks + recent + 1 keys, where the training mask counts the query's own key among the `recent`.
- A prompt fed whole is attended to in full by every head; fed in pieces, streaming heads see a cut past: pieces matter.
- Sparsity 1 makes no head full and sparsity 0 all of them (as released; a plain quantile would keep the largest at 1).
- Noise below 1e-6 breaks ties at random when released: here it is given, and without it ties at the threshold are all full.
"""

import numpy as np
from jaxtyping import Bool, Float, Int

from .held import Held

# ---- Offline: one alpha a KV head


def streaming_mask(n: int, *, sinks: int, recent: int) -> Bool[np.ndarray, "n n"]:
    """Key j is seen by query i: j <= i and (j < sinks or i - j < recent)."""
    i, j = np.arange(n)[:, None], np.arange(n)[None, :]
    return (j <= i) & ((j < sinks) | (i - j < recent))


def mixed(full: Float[np.ndarray, "*a"], streaming: Float[np.ndarray, "*a"], alpha: float) -> Float[np.ndarray, "*a"]:
    """alpha full + (1 - alpha) streaming: a head's output while alpha is learned."""
    return alpha * full + (1 - alpha) * streaming


def loss(
    full: Float[np.ndarray, "t e"], student: Float[np.ndarray, "t e"], alpha: Float[np.ndarray, "l h"], *, weight: float = 0.05
) -> float:
    """Mean square difference of the last hidden states over labelled tokens and channels + weight mean |alpha|."""
    return ((full - student) ** 2).mean(axis=1).mean() + weight * np.abs(alpha).mean()


def learning_rate(step: int, *, steps: int = 2000, top: float = 0.02) -> float:
    """top min(1, max((s + 1) / (N / 5), 0.1), max((N - s) / (N / 5), 0.1)): up in a fifth, down in a fifth."""
    fifth = steps / 5
    return top * min(1.0, max((step + 1) / fifth, 0.1), max((steps - step) / fifth, 0.1))


def full_heads(
    alpha: Float[np.ndarray, "l h"], sparsity: float, noise: Float[np.ndarray, "l h"] | None = None
) -> Bool[np.ndarray, "l h"]:
    """Full where alpha, cut to [0, 1], reaches the quantile `sparsity` of all alphas (between ranks: linear)."""
    a = np.clip(alpha.astype(np.float64), 0, 1) + (0.0 if noise is None else noise)
    if sparsity >= 1:
        return np.zeros(a.shape, bool)
    return a >= np.quantile(a, sparsity) if sparsity > 0 else np.ones(a.shape, bool)


# ---- Deployed


def kept(seen: int, pos: Int[np.ndarray, "n"], *, full: bool, sinks: int, recent: int) -> Bool[np.ndarray, "n"]:
    """Of the positions held after `seen` tokens those that stay: all, or the first `sinks` and the last `recent`."""
    return np.full(len(pos), full) | (pos < sinks) | (pos >= seen - recent)


class Decoding:
    """All KV heads of a model, head by head; the pattern says which are full."""

    def __init__(self, pattern: Bool[np.ndarray, "l h"], d: int, *, sinks: int = 64, recent: int = 256):
        self.pattern, self.sinks, self.recent = pattern, sinks, recent
        self.heads = {at: Held.empty(d) for at in np.ndindex(pattern.shape)}

    def extend(
        self, layer: int, q: Float[np.ndarray, "h g c d"], k: Float[np.ndarray, "h c d"], v: Float[np.ndarray, "h c d"]
    ) -> tuple[Float[np.ndarray, "h g c d"], list[Int[np.ndarray, "n"]]]:
        """(output, positions held by each head afterwards) of a piece of c tokens in one layer; c = 1 is a decode step."""
        out = []
        for h in range(len(k)):
            head = self.heads[layer, h]
            out.append(head.extend(q[h], k[h], v[h]))
            full = bool(self.pattern[layer, h])
            head.keep(kept(head.seen, head.pos, full=full, sinks=self.sinks, recent=self.recent))
        return np.stack(out), [self.heads[layer, h].pos for h in range(len(k))]


def duo_nbytes(pattern: Bool[np.ndarray, "l h"], n: int, d: int, *, sinks: int, recent: int, element: int = 2) -> int:
    """Keys and values after n tokens: n rows a full head, min(n, sinks + recent) a streaming one."""
    full = int(pattern.sum())
    rows = full * n + (pattern.size - full) * min(n, sinks + recent)
    return 2 * rows * d * element
