"""LESS: maps of queries and keys, layer by layer, that give back what an eviction takes from a layer's output.

*Get More with LESS: Synthesizing Recurrence with KV Cache Compression*, arXiv 2402.09398, section 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from kvjax.gates.side_maps import init_side_maps
from kvjax.protocols import Decoder
from kvjax.train.absorbing import absorbing
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import masked_mean


@dataclass(frozen=True)
class LESS(Learner):
    """loss = mean over layers of mean_t |(o_t - o'_t) W_o|² / e, over tokens t behind the first `budget`.

    o is full attention, o' that to what H2O holds by then and to what was absorbed of the rest. Every layer reads what the full
    model gives it, so that its maps learn alone. The terms also tell the error of H2O without them, and how much less this is.

    Args:
        budget: slots of a head, or the share of a text.   recent_share: share of them for the last tokens.
        rank, hidden: of the maps (`kvjax.gates.init_side_maps`).
        rate: Adam's learning rate, halved after each quarter of the run.

    Source: LESS, arXiv 2402.09398, section 3.2, as released (512 texts, 40 epochs).
    Differs: no dropout (the release: 0.3 between the maps); all layers learn in one run, and what is kept is its end (the release
    keeps each layer's best epoch, by texts held out); H2O's sums are of a softmax over what is held, as it is served (the release
    adds up the full one).
    """

    method: ClassVar[str] = "less"
    budget: int | float = 0.05
    recent_share: float = 0.5
    rank: int = 8
    hidden: int = 512
    rate: float = 1e-3

    def init(self, key: Array, model: Decoder) -> PyTree:
        return init_side_maps(key, model, rank=self.rank, hidden=self.hidden)

    def slots(self, length: int) -> int:
        """Slots of a head for texts of `length` tokens."""
        return self.budget if isinstance(self.budget, int) else max(1, int(self.budget * length))

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        t = batch.tokens.shape[-1]
        slots = self.slots(t)
        hook = absorbing(slots, recent=int(self.recent_share * slots))
        _, found = frozen.forward(batch.tokens, hook=hook, gates=weights)
        told = batch.valid & (jnp.arange(t) >= slots)
        mine, alone = (jnp.stack([masked_mean(x, told) for x in of]).mean() for of in zip(*found, strict=True))
        terms = {"squared_error": mine, "without": alone, "explained": 1 - mine / jnp.maximum(alone, 1e-12)}
        return Graded(mine, jnp.float32(min(1.0, slots / t)), terms)

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        return optax.adam(optax.exponential_decay(self.rate, max(1, steps // 4), 0.5, staircase=True))

    def check(self, model: Decoder, length: int) -> None:
        if any(window is not None for window in model.windows):
            raise ValueError("what is absorbed stands for full attention: this model has layers with a sliding window")
        if length <= self.slots(length):
            raise ValueError(f"texts of {length} tokens fit {self.slots(length)} slots: nothing is absorbed, lengthen them")
