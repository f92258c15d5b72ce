"""LookaheadKV (arXiv 2603.10899): learned tokens behind the prompt score it; low-rank updates act on their rows alone.

Y = [X; P] W + [0; P] B A (alpha / r), in every linear map of a Llama, prompt and learned tokens as one text.

Readings of what is open:
- The softmax of a learned token runs over all it sees, its like included; the prompt's columns are told, and averaged over tokens.
- Mean over the group, then pooling as SnapKV's (average of 5, zeros outside); no protected window.
"""

import numpy as np
from jaxtyping import Float, Int

from .attention import attention_rows
from .pooling import avg_pool
from .rotary import frequencies, rotate
from .top_k import sinks_and_recent, top_k


class Layer:
    """One Llama layer [n + p rows], its rows from `soft` on updated; weights float64 by path, updates {path: (A, B)}."""

    def __init__(self, weights: dict, updates: dict, scale: float, config: dict, soft: int):
        self.weights, self.updates, self.scale, self.config, self.soft = weights, updates, scale, config, soft

    def linear(self, path: str, x: Float[np.ndarray, "n i"]) -> Float[np.ndarray, "n o"]:
        y, (a, b) = x @ self.weights[f"{path}.weight"].T, self.updates[path]
        y[self.soft :] += self.scale * (x[self.soft :] @ a.T @ b.T)
        return y

    def norm(self, name: str, x: Float[np.ndarray, "n e"]) -> Float[np.ndarray, "n e"]:
        return x / np.sqrt((x**2).mean(-1, keepdims=True) + self.config["rms_norm_eps"]) * self.weights[f"{name}.weight"]

    def heads(self, x: Float[np.ndarray, "n e"]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rotated q [h g n d] and k [h n d], and v."""
        h, d, n = self.config["num_key_value_heads"], self.config["head_dim"], len(x)
        q, k, v = (self.linear(f"attention.{name}", x).reshape(n, -1, d).swapaxes(0, 1) for name in "qkv")
        omega = frequencies(self.config, d)
        q, k = (rotate(y, np.arange(n), omega) for y in (q, k))
        return q.reshape(h, -1, n, d), k, v

    def __call__(self, x: Float[np.ndarray, "n e"]) -> tuple[Float[np.ndarray, "n e"], Float[np.ndarray, "h g n n"]]:
        """(the residual stream after the layer, its attention)."""
        q, k, v = self.heads(self.norm("attention_norm", x))
        rows = attention_rows(q, k)
        out = np.einsum("hgtn,hnd->thgd", rows, v).reshape(len(x), -1)
        x = x + self.linear("attention.o", out)
        y = self.norm("mlp_norm", x)
        gate = self.linear("mlp.gate", y)
        return x + self.linear("mlp.down", gate / (1 + np.exp(-gate)) * self.linear("mlp.up", y)), rows


def scores(rows: Float[np.ndarray, "h g t n"], soft: int, size: int = 5) -> Float[np.ndarray, "h soft"]:
    """u[j] of the prompt's tokens, of rows that begin with the prompt's."""
    return avg_pool(rows[:, :, soft:, :soft].mean(axis=2).mean(axis=1), size)


def kept(u: Float[np.ndarray, "h n"], budget: int, *, recent: int = 0) -> list[Int[np.ndarray, "k"]]:
    """Prompt positions of each head."""
    n = u.shape[1]
    return [np.arange(n) if n <= budget else top_k(head, budget, sinks_and_recent(n, recent=recent)) for head in u]
