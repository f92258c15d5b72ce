"""SirLLM (arXiv 2405.12528): before each turn the most surprising tokens stay, with sinks and the most recent.

Readings of what is open:
- Surprisal is natural logarithm; logits at i - 1 score token i; the first token of a turn gets the turn's maximum. A turn of one
  token has no score of its own: 0.
- The n_e - c highest are taken among everything held, sinks and recent ones too; where they meet the sinks, recency fills more.
- The decay comes with every turn, whether or not anything goes, to what is held before the turn's own tokens.
- c >= n_e leaves no place by surprisal. At least the sinks stay, however long the turn.
- Held tokens are in order of time; positions are ranks in the cache.
"""

from dataclasses import dataclass, field

import numpy as np
from jaxtyping import Float, Int

from .highest import highest


def surprisal(logits: Float[np.ndarray, "c v"], tokens: Int[np.ndarray, "c"]) -> Float[np.ndarray, "c"]:
    """e_i = -log P(x_i | x_<i) for one turn, logits of its own tokens."""
    z = logits.astype(np.float64)
    z = z - z.max(axis=-1, keepdims=True)
    log_p = z - np.log(np.exp(z).sum(axis=-1, keepdims=True))
    later = -log_p[np.arange(len(tokens) - 1), tokens[1:]]
    return np.append(later.max(initial=0.0), later)


def kept(e: Float[np.ndarray, "s"], new: int, *, sinks: int = 4, recent: int = 0, surprising: int = 1000) -> Int[np.ndarray, "k"]:
    """Indices that stay so that `new` tokens fit in sinks + recent + surprising; everything if they already do."""
    size, capacity = len(e), sinks + recent + surprising
    if size + new <= capacity:
        return np.arange(size)
    stay = set(highest(e, max(surprising - new, 0)).tolist()) | set(range(min(sinks, size)))
    for j in range(size - 1, 0, -1):
        if len(stay) < capacity - new:
            stay.add(j)
    return np.array(sorted(stay), int)


@dataclass
class Conversation:
    """What the whole model holds: one set of positions and surprisals for all layers and heads."""

    sinks: int = 4
    recent: int = 0
    surprising: int = 1000
    eta: float = 1.0
    held: np.ndarray = field(default_factory=lambda: np.zeros(0, int))
    e: np.ndarray = field(default_factory=lambda: np.zeros(0))
    seen: int = 0

    def turn(self, e: Float[np.ndarray, "c"]) -> Int[np.ndarray, "k"]:
        """Make room for a turn, let what is held decay, and append the turn; answers what the turn's tokens found held."""
        stay = kept(self.e, len(e), sinks=self.sinks, recent=self.recent, surprising=self.surprising)
        found = self.held[stay]
        self.e = np.append(self.e[stay] * self.eta, e)
        self.held = np.append(found, np.arange(self.seen, self.seen + len(e)))
        self.seen += len(e)
        return found

    def positions(self) -> Int[np.ndarray, "s"]:
        """Rotary positions: ranks in the cache."""
        return np.arange(len(self.held))
