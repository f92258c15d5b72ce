"""H2O (arXiv 2306.14048) as published: summed attention, cut after the prompt and after every token.

Readings of what is open:
- Attention is averaged over the group before it is summed; the paper's heads have no groups.
- Scores of what stays are kept as they are; a new token starts from its own attention.
- `prompt_only` is the form of prompt-only comparisons: every row counts, the last r stay, nothing goes while decoding.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .highest import highest


def kept(acc: Float[np.ndarray, "s"], heavy: int, recent: int) -> Int[np.ndarray, "k"]:
    """topk(acc of all but the last r, hh) and the last r; everything where no more than hh + r are held."""
    size = len(acc)
    if size <= heavy + recent:
        return np.arange(size)
    return np.append(highest(acc[: size - recent], heavy), np.arange(size - recent, size))


@dataclass
class Decoding:
    """One KV head with `heavy` + `recent` slots."""

    heavy: int
    recent: int
    prompt_only: bool = False
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    acc: np.ndarray = field(default_factory=lambda: np.zeros(0))

    def prefill(self, a: Float[np.ndarray, "g n n"]) -> None:
        self.held = np.arange(a.shape[-1])
        self.acc = a.mean(axis=0).sum(axis=0)
        self.cut()

    def step(self, a: Float[np.ndarray, "g s"], t: int) -> None:
        self.held = np.append(self.held, t)
        self.acc = np.append(self.acc, 0.0) + a.mean(axis=0)
        if not self.prompt_only:
            self.cut()

    def cut(self) -> None:
        stay = kept(self.acc, self.heavy, self.recent)
        self.held, self.acc = self.held[stay], self.acc[stay]
