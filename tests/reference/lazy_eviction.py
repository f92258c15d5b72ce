"""LazyEviction (arXiv 2506.15969): tokens that are due to be looked at again stay; eviction only every W steps.

Readings of what is open (the printed forms of the second term disagree):
- Steps are positions: a prompt's rows count as steps. The release counts decoded tokens alone.
- A token starts one step before its own row, as in the release: a hit by that row is a period of 1.
- A hit is attention of at least alpha by any query head of the group.
- H2 = 2 sigmoid(-(MRI - 1)), as in the release; I = H1 + H2. Where MRI = 0, nothing ever hit the token: 0.
- H1 is the printed 2 sigmoid(-(t - TS) / MRI); the release has 1 more in the exponent (`shift`).
- Evictions happen when the number of generated tokens is a multiple of W and more than b are held; never right after the prompt,
  unless `after_prefill`.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .highest import highest


def sigmoid(x: Float[np.ndarray, "*s"]) -> Float[np.ndarray, "*s"]:
    """1 / (1 + exp(-x)), for x that are not large."""
    return 1 / (1 + np.exp(-x))


def update(
    ts: Int[np.ndarray, "s"], mri: Int[np.ndarray, "s"], a: Float[np.ndarray, "s"], t: int, alpha: float
) -> tuple[Int[np.ndarray, "s"], Int[np.ndarray, "s"]]:
    """Where A >= alpha: MRI = max(MRI, t - TS), TS = t."""
    hit = a >= alpha
    return np.where(hit, t, ts), np.where(hit, np.maximum(mri, t - ts), mri)


def due(ts: Int[np.ndarray, "s"], mri: Int[np.ndarray, "s"], t: int, shift: float = 0.0) -> Float[np.ndarray, "s"]:
    """H1 = 2 sigmoid(-shift - (t - TS) / MRI), a true quotient; 0 where MRI = 0."""
    return np.where(mri > 0, 2 * sigmoid(-shift - (t - ts) / np.maximum(mri, 1)), 0.0)


def short_period(mri: Int[np.ndarray, "s"]) -> Float[np.ndarray, "s"]:
    """H2 = 2 sigmoid(-(MRI - 1)); 0 where MRI = 0."""
    return np.where(mri > 0, 2 * sigmoid(-(mri.astype(float) - 1)), 0.0)


def importance(ts: Int[np.ndarray, "s"], mri: Int[np.ndarray, "s"], t: int, shift: float = 0.0) -> Float[np.ndarray, "s"]:
    """I = H1 + H2; 0 where MRI = 0. In float32, where tokens of one MRI tie once their last hits are long past."""
    return (due(ts, mri, t, shift) + short_period(mri)).astype(np.float32)


@dataclass
class Decoding:
    """One KV head: `budget` slots of which the last `window` are always held; up to budget + window between evictions."""

    budget: int
    window: int
    alpha: float = 1e-4
    after_prefill: bool = False
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    ts: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    mri: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    generated: int = 0

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None:
        for t in range(a.shape[-1]):
            self.see(a[:, t, : t + 1], t)
        if self.after_prefill:
            self.evict(a.shape[-1] - 1)

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        self.see(a, t)
        self.generated += 1
        if self.generated % self.window == 0:
            self.evict(t)

    def see(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        """One row over what is held and the new token."""
        self.held = np.append(self.held, t)
        self.ts, self.mri = np.append(self.ts, t - 1), np.append(self.mri, 0)
        self.ts, self.mri = update(self.ts, self.mri, a.max(axis=0), t, self.alpha)

    def evict(self, t: int) -> None:
        """The last W and the b - W most important of the others, where more than b are held."""
        size = len(self.held)
        if size > self.budget:
            scores = importance(self.ts, self.mri, t)[: size - self.window]
            stay = np.append(highest(scores, self.budget - self.window), np.arange(size - self.window, size))
            self.held, self.ts, self.mri = self.held[stay], self.ts[stay], self.mri[stay]
