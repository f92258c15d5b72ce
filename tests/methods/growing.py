"""A layer whose heads hold keys, values and biases after the prompt and take every later token in."""

from dataclasses import dataclass

import numpy as np

from tests.reference.softmax import softmax


@dataclass
class Growing:
    """Heads as lists of [n, d] arrays; biases [n] where slots have them."""

    k: list[np.ndarray]
    v: list[np.ndarray]
    bias: list[np.ndarray] | None = None

    def __post_init__(self):
        self.bias = [np.zeros(len(k)) for k in self.k] if self.bias is None else self.bias

    def step(self, q, k, v, at):
        out = []
        for h in range(len(self.k)):
            self.k[h], self.v[h] = np.vstack([self.k[h], k[h]]), np.vstack([self.v[h], v[h]])
            self.bias[h] = np.append(self.bias[h], 0.0)
            z = q[h].astype(np.float64) @ self.k[h].T / np.sqrt(q.shape[-1]) + self.bias[h]
            out.append(softmax(z) @ self.v[h])
        return np.stack(out)
