"""DMC (arXiv 2403.09636): a token is averaged into the newest slot of its head, or opens one, before its query attends.

The last coordinate of un-rotated keys decides, that of queries weighs; both are 0 for attention, before and after the rotation.
A slot accumulates all of its tokens (the release: the last 12 at most).
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float

from .rotary import rotate
from .softmax import softmax


def pooled(x: Float[np.ndarray, "n d"], w: Float[np.ndarray, "n"], a: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n d"]:
    """acc_t / c_t, acc_t = acc_{t-1} a_t + x_t w_t, c_t = c_{t-1} a_t + w_t."""
    acc, c, out = np.zeros(x.shape[1]), 0.0, []
    for x_t, w_t, a_t in zip(x, w, a, strict=True):
        acc, c = acc * a_t + x_t * w_t, c * a_t + w_t
        out.append(acc / c)
    return np.stack(out)


def silent(x: np.ndarray) -> np.ndarray:
    """0 for the last coordinate."""
    return np.concatenate([x[..., :-1], np.zeros_like(x[..., :1])], -1)


@dataclass
class Head:
    """One KV head: slots of (mean key before the rotation, mean value, z), and the position of the last token in each."""

    offset: float
    omega: Float[np.ndarray, "f"]
    k: list = field(default_factory=list)
    v: list = field(default_factory=list)
    z: list = field(default_factory=list)
    pos: list = field(default_factory=list)

    def step(
        self, q: Float[np.ndarray, "g d"], k: Float[np.ndarray, "d"], v: Float[np.ndarray, "d"], at: int
    ) -> Float[np.ndarray, "g d"]:
        """One token, its queries and key before the rotation; the output of its queries."""
        q, k, v = (x.astype(np.float64) for x in (q, k, v))
        w = 1 / (1 + np.exp(-(q[:, -1].mean() + self.offset))) + 2**-7
        if k[-1] - self.offset > 0 and self.z:
            z = self.z[-1]
            self.k[-1] = (self.k[-1] * z + silent(k) * w) / (z + w)
            self.v[-1] = (self.v[-1] * z + v * w) / (z + w)
            self.z[-1], self.pos[-1] = z + w, at
        else:
            for held, new in ((self.k, silent(k)), (self.v, v), (self.z, w), (self.pos, at)):
                held.append(new)
        keys = self.rotated(np.stack(self.k), np.array(self.pos))
        queries = self.rotated(silent(q), np.full(len(q), at))
        return softmax(queries @ keys.T / np.sqrt(len(k))) @ np.stack(self.v)

    def rotated(self, x: np.ndarray, at: np.ndarray) -> np.ndarray:
        return silent(rotate(x, at, self.omega))
