"""TRIM-KV (arXiv 2512.03324): a gate gives each token a retention beta in (0, 1); a full head drops what has decayed most.

i is a token's true position from 0, t that of the newest token appended, log beta a number a KV head, kept in float64.
Where the sources leave room:

- While training, the logits get + (t - i) log beta_i (the paper and the fused code; the eager code multiplies the logit by
  beta^(t - i), another model). At inference attention knows no decay: the gate only ranks.
- The score is (t + 2 - i) log beta_i: the code's "tokens seen + 1", the newest one among the t + 1 seen (the paper: t - i).
- A piece of c tokens attends to all that is held and to itself, and only then is the head cut.
- Recent tokens are forced to stay only if asked (no width is given); if they fill the budget the latest of them win.
- Two forms of the loss: the paper divides by t from 1, and means over all t; the code by max(t - M, 1), t from 0, and means over
  those t, of all rows, heads and layers, where it is above 0.
- The look-ahead is the sum of beta^a, a from t + 3 - i, over `steps` steps; log ||k|| is added to the plain score.
"""

import numpy as np
from jaxtyping import Float, Int

from .held import Held
from .softmax import softmax
from .top_k import sinks_and_recent, top_k

# ---- Gate


def log_sigmoid(x: Float[np.ndarray, "*a"]) -> Float[np.ndarray, "*a"]:
    """-ln(1 + e^-x)."""
    return -np.logaddexp(0.0, -x)


def gate(
    x: Float[np.ndarray, "*a e"],
    w1: Float[np.ndarray, "e m"],
    b1: Float[np.ndarray, " m"],
    w2: Float[np.ndarray, "m h"],
    b2: Float[np.ndarray, " h"],
) -> Float[np.ndarray, "*a h"]:
    """log beta = log sigmoid(silu(x W1 + b1) W2 + b2), x the attention input after its norm, m = 512.

    Before training W is N(0, 0.02), b1 is 0 and b2 is 18 (10 in the configuration class): beta is almost 1.
    """
    hidden = x @ w1 + b1
    return log_sigmoid((hidden * np.exp(log_sigmoid(hidden))) @ w2 + b2)


# ---- Training


def decay(log_beta: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n n"]:
    """(t - i) log beta_i for i <= t, -inf above the diagonal."""
    t, i = np.arange(len(log_beta))[:, None], np.arange(len(log_beta))[None, :]
    return np.where(i <= t, (t - i) * log_beta, -np.inf)


def decayed_rows(
    q: Float[np.ndarray, "g n d"], k: Float[np.ndarray, "n d"], log_beta: Float[np.ndarray, "n"]
) -> Float[np.ndarray, "g n n"]:
    """softmax_i(q_t . k_i / sqrt(d) + (t - i) log beta_i)."""
    return softmax(q @ k.T / np.sqrt(q.shape[-1]) + decay(log_beta))


def retained(log_beta: Float[np.ndarray, "n"]) -> Float[np.ndarray, "n"]:
    """S_t = sum over i <= t of beta_i^(t - i): how many tokens are alive."""
    return np.exp(decay(log_beta)).sum(axis=1)


def capacity_paper(s: Float[np.ndarray, "n"], budget: int) -> float:
    """(1 / T) sum_t max(0, S_t - M) / t, t from 1."""
    return (np.maximum(0, s - budget) / np.arange(1, len(s) + 1)).mean()


def capacity_code(s: Float[np.ndarray, "*h n"], budget: int) -> float:
    """(S_t - M) / max(t - M, 1), t from 0, mean over all entries above 0."""
    over = (s - budget) / np.maximum(np.arange(s.shape[-1]) - budget, 1)
    return over[over > 0].mean()


# ---- Scores


def retention(log_beta: Float[np.ndarray, "n"], pos: Int[np.ndarray, "n"], t: int) -> Float[np.ndarray, "n"]:
    """(t + 2 - i) log beta_i."""
    return (t + 2 - pos) * log_beta


def retention_and_norm(
    log_beta: Float[np.ndarray, "n"], pos: Int[np.ndarray, "n"], t: int, k: Float[np.ndarray, "n d"]
) -> Float[np.ndarray, "n"]:
    """The same + log ||k_i||."""
    return retention(log_beta, pos, t) + np.log(np.linalg.norm(k, axis=1))


def look_ahead(log_beta: Float[np.ndarray, "n"], pos: Int[np.ndarray, "n"], t: int, steps: int) -> Float[np.ndarray, "n"]:
    """beta^a (1 - beta^n) / (1 - beta), a = t + 3 - i: the sum of what a token is worth in n steps, one later."""
    return np.exp([(t + 3 - pos + step) * log_beta for step in range(steps)]).sum(axis=0)


# ---- Inference


class Head:
    """One KV head: at budget + buffer tokens the best `budget` stay."""

    def __init__(self, d: int, *, budget: int, buffer: int = 128, recent: int = 0):
        self.held, self.log_beta = Held.empty(d), np.zeros(0)
        self.budget, self.buffer, self.recent = budget, buffer, recent

    def extend(
        self,
        q: Float[np.ndarray, "g c d"],
        k: Float[np.ndarray, "c d"],
        v: Float[np.ndarray, "c d"],
        log_beta: Float[np.ndarray, " c"],
    ) -> tuple[Float[np.ndarray, "g c d"], Int[np.ndarray, "n"]]:
        """(output, positions held afterwards) of a piece of the prompt, or of one token."""
        out = self.held.extend(q, k, v)
        self.log_beta = np.append(self.log_beta, log_beta)
        if len(self.log_beta) >= self.budget + self.buffer:
            self.evict()
        return out, self.held.pos

    def evict(self) -> None:
        """The `budget` highest scores stay, ties to the lower position; forced ones come first."""
        scores = retention(self.log_beta, self.held.pos, self.held.seen - 1)
        slots = top_k(scores, self.budget, sinks_and_recent(len(scores), recent=self.recent))
        self.held.keep(slots)
        self.log_beta = self.log_beta[slots]


def trim_nbytes(rows: int, d: int, *, element: int = 2) -> int:
    """Keys, values, a log beta and a position of 4 bytes each; an allocated head has budget + buffer rows."""
    return rows * (2 * d * element + 8)
