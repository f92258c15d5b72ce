"""DMS: each token learns whether the one before it can go, once `window` more have been read.

*Inference-Time Hyper-Scaling with KV Cache Compression*, NeurIPS 2025, arXiv 2506.05345, section 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float32, PyTree

from kvjax.gates.eviction_logit import EvictionGate
from kvjax.gates.gate import init_gate
from kvjax.protocols import Decoder
from kvjax.train.batch import Batch
from kvjax.train.delayed import deciding, evicted_share
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import masked_mean, reverse_kl
from kvjax.train.rates import of_ratio, rate_hinge, ratio_ramp


@dataclass(frozen=True)
class DMS(Learner):
    """loss = KL(student ‖ teacher) on labelled tokens + weight · mean_rows max(0, 1 - 1/CR - share evicted).

    The student's attention fades by ln(1 - p) where a key is more than `window` tokens old, p = σ((ℓ + G1 - G2) / τ) of the next
    token's logit ℓ, G from the Gumbel distribution; the share counts p > 1/2 as 1. CR grows from 1 to `ratio` along the run.

    Args:
        window: tokens between a decision and its execution.   ratio: CR at the end.   ramp: share of the run in which CR grows.
        temperature: τ.   weight: of the second term.
        rate: Adam's learning rate, constant.   clip: of the gradient's norm.

    Source: DMS, arXiv 2506.05345, section 3, as released (CR reaches 16 after 510 of 544 steps; its checkpoint for 8 is step 238).
    Differs: the gate has weights of its own; the release can also borrow a query's last channel. It always has a bias (the
    release's where the model's attention has them, which by default it has not).
    """

    method: ClassVar[str] = "dms"
    window: int = 512
    ratio: float = 16.0
    ramp: float = 510 / 544
    temperature: float = 0.1
    weight: float = 1.0
    rate: float = 3e-5
    clip: float = 1.0

    @property
    def budget(self) -> float:
        """The share of the cache that stays."""
        return 1 / self.ratio

    def gate(self, model: Decoder) -> EvictionGate:
        """The gate of a model."""
        return EvictionGate(heads=model.heads)

    def init(self, key: Array, model: Decoder) -> PyTree:
        return init_gate(self.gate(model), key, model)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        hook = deciding(self.gate(frozen.decoder), moment.key, temperature=self.temperature, window=self.window)
        x, _ = frozen.forward(batch.tokens)
        y, logits = frozen.forward(batch.tokens, hook=hook, gates=weights)

        def kl_of(logits: Array, x: Array) -> Array:
            return reverse_kl(frozen.unembed(x), logits)

        kl = masked_mean(frozen.by_blocks(kl_of, y, x), batch.predicted)
        evicted = evicted_share(jnp.stack(logits, axis=1), batch.valid)
        price = rate_hinge(evicted, self.target(moment))
        return Graded(kl + self.weight * price, 1 - evicted.mean(), {"kl": kl, "hinge": price})

    def target(self, moment: Moment) -> Float32[Array, ""]:
        """1 - 1/CR of the moment: the share that has to go."""
        return of_ratio(ratio_ramp(moment.progress / self.ramp, last=self.ratio))

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        del steps
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adam(self.rate, b1=0.9, b2=0.95))

    def check(self, model: Decoder, length: int) -> None:
        del model
        if length <= self.window + 1:
            raise ValueError(
                f"in texts of {length} tokens nothing is more than {self.window} old: lengthen them, or give a smaller window"
            )
        if self.ratio <= 1:
            raise ValueError(f"ratio is how many times smaller the cache becomes, above 1; got {self.ratio}")
