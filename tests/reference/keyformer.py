"""Keyformer (arXiv 2403.09054): tempered attention with Gumbel noise accumulates; the highest older ones and the last r stay.

Readings of what is open:
- Noise is given, one number a query head, query position and key position: fresh for every token and step. The tokens that
  are gone, and later ones, are left out before the noise.
- A row's probabilities are averaged over the group; the paper's models have no groups.
- tau = 1 + 0.01 step is the code's default, the whole prompt being step 0; the paper's schedule, and that of the code's runs, is
  linear from tau_init to tau_end, 1 to 2, over the tokens to come: where these are not known, the default up to tau_end.
- Rows are scored only: the output is ordinary attention.
- `Release` is the reference's mask, off by one: the column S - r is neither a candidate nor recent. What it discards keeps its
  column with score 0.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .highest import floor_share, highest
from .softmax import softmax


def sizes(n: int) -> tuple[int, int]:
    """(b, r) = (int(0.6 n), int(0.3 b)), fixed at the prompt's length."""
    budget = floor_share(n, 0.6)
    return budget, floor_share(budget, 0.3)


def tau_code(step: int, last: float = 2.0) -> float:
    """min(1 + 0.01 step, tau_end)."""
    return min(1 + 0.01 * step, last)


def tau_linear(step: int, steps: int, first: float = 1.0, last: float = 2.0) -> float:
    """tau_init + t (tau_end - tau_init) / T."""
    return first + step * (last - first) / steps


def tempered(z: Float[np.ndarray, "*g s"], noise: Float[np.ndarray, "*g s"], tau: float) -> Float[np.ndarray, "*g s"]:
    """p = softmax((x + xi) / tau); -inf stays out, whatever its noise."""
    return softmax((z + noise) / tau)


@dataclass
class Decoding:
    """One KV head; `noise` holds xi for every query head, query position and key position. Takes logits."""

    budget: int
    recent: int
    noise: Float[np.ndarray, "g t t"]
    tau: Callable[[int], float] = tau_code
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    acc: np.ndarray = field(default_factory=lambda: np.zeros(0))
    prompt: int = 0

    def prefill(self, z: Float[np.ndarray, "g n n"]) -> None:
        """Every prompt row with its own noise, all of them step 0."""
        self.prompt = n = z.shape[-1]
        self.held = np.arange(n)
        self.acc = tempered(z, self.noise[:, :n, :n], self.tau(0)).sum(axis=1).mean(axis=0)
        self.evict()

    def step(self, z: Float[np.ndarray, "g s"], t: int) -> None:
        """The first generated token is step 1."""
        self.held, self.acc = np.append(self.held, t), np.append(self.acc, 0.0)
        p = tempered(z, self.noise[:, t, self.held], self.tau(t - self.prompt + 1))
        self.acc = self.acc + p.mean(axis=0)
        self.evict()

    def evict(self) -> None:
        """topk(acc of the older ones, b - r) and the last r, where more than b are held."""
        size = len(self.held)
        if size > self.budget:
            old = highest(self.acc[: size - self.recent], self.budget - self.recent)
            stay = np.append(old, np.arange(size - self.recent, size))
            self.held, self.acc = self.held[stay], self.acc[stay]


@dataclass
class Release(Decoding):
    """The same under the reference's mask: `acc` has a column for every position."""

    def step(self, z: Float[np.ndarray, "g s"], t: int) -> None:
        """Scores of what is visible; nothing is compacted."""
        at = np.append(self.held, t)
        p = tempered(z, self.noise[:, t, at], self.tau(t - self.prompt + 1))
        self.acc = np.append(self.acc, 0.0)
        self.acc[at] += p.mean(axis=0)
        self.held = at
        self.evict()

    def evict(self) -> None:
        """Keys among columns 0..S-r-1, recent ones S-r+1..S, S being the token to come."""
        size = len(self.acc)
        if size > self.budget:
            old = highest(self.acc[: size - self.recent], self.budget - self.recent)
            self.held = np.append(old, np.arange(size - self.recent + 1, size))
            gone = np.setdiff1d(np.arange(size), self.held)
            self.acc[gone] = 0.0


def kept_of(acc: Float[np.ndarray, "n"], budget: int, recent: int) -> Int[np.ndarray, "k"]:
    """What a prompt of given scores keeps."""
    rule = Decoding(budget, recent, np.zeros((1, 1, 1)), held=np.arange(len(acc)), acc=np.asarray(acc, np.float64))
    rule.evict()
    return rule.held
