"""DBTrimKV (arXiv 2605.09649): TRIM-KV with one budget for the whole model.

As TRIM-KV, with two layers between in the gate and a last projection shared by all layers. Where what is held reaches
L·H·(M + buffer) slots, the best L·H·M of (n_seen + 1 - i) log beta_i over all layers, heads and tokens stay: after the prompt, and
every `buffer` tokens.
A head keeps its best slot whatever the others' are.
"""

import numpy as np
from jaxtyping import Float

from .held import Held
from .trim_kv import log_sigmoid, retained, retention


def silu(x: Float[np.ndarray, "*a"]) -> Float[np.ndarray, "*a"]:
    """x σ(x)."""
    return x * np.exp(log_sigmoid(x))


def gate(x: Float[np.ndarray, "n e"], weights: dict) -> Float[np.ndarray, "n h"]:
    """log σ(silu(silu(x W1 + b1) W2 + b2) W3 + b3)."""
    for name in ("up", "across"):
        x = silu(x @ weights[name]["kernel"] + weights[name]["bias"])
    return log_sigmoid(x @ weights["down"]["kernel"] + weights["down"]["bias"])


def best_of_all(scores: dict, total: int) -> dict:
    """For each head its slots among the `total` best, ascending; ties to the lower head and slot; a head's best comes first."""
    first = {at: int(np.argmax(u)) for at, u in scores.items()}
    ranked = sorted((j != first[at], -u[j], at, j) for at, u in scores.items() for j in range(len(u)))[:total]
    return {at: sorted(j for _, _, head, j in ranked if head == at) for at in scores}


def hinge(log_beta: Float[np.ndarray, "h n"], budget: int) -> Float[np.ndarray, " n"]:
    """max(0, S_t - M·H) / max((t - M)·H, 1), S_t the tokens alive in all heads, t from 0."""
    s, t = sum(retained(row) for row in log_beta), np.arange(log_beta.shape[1])
    return np.maximum(0, s - budget * len(log_beta)) / np.maximum((t - budget) * len(log_beta), 1)


class Head:
    """One KV head, which waits for the model to be cut."""

    def __init__(self, d: int):
        self.held, self.log_beta = Held.empty(d), np.zeros(0)

    def extend(self, q, k, v, log_beta):
        """(output, positions held afterwards)."""
        out = self.held.extend(q, k, v)
        self.log_beta = np.append(self.log_beta, log_beta)
        return out, self.held.pos

    def scores(self) -> Float[np.ndarray, "n"]:
        """(n_seen + 1 - i) log beta_i, the newest token among the seen."""
        return retention(self.log_beta, self.held.pos, self.held.seen - 1)


def evict(heads: dict[tuple[int, int], Head], budget: int) -> None:
    """One cut of all heads to `budget` slots a head on average."""
    for at, slots in best_of_all({at: head.scores() for at, head in heads.items()}, budget * len(heads)).items():
        heads[at].held.keep(np.array(slots))
        heads[at].log_beta = heads[at].log_beta[slots]
