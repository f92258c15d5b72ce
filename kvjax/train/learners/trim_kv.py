"""TRIM-KV: gates that forget, taught by the same model that forgets nothing.

*Cache What Lasts: Token Retention for Memory-Bounded KV Cache in LLMs*, arXiv 2512.03324, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, PyTree

from kvjax.gates.gate import init_gate
from kvjax.gates.retention import RetentionGate
from kvjax.protocols import Decoder
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import masked_mean
from kvjax.train.schedules import cosine
from kvjax.train.taught import taught
from kvjax.train.trim_kv import capacity, decaying, retained


@dataclass(frozen=True)
class TrimKV(Learner):
    """loss = (KL(teacher ‖ student) + CE) / 2 on labelled tokens + λ · `capacity`.

    Args:
        budget: M, tokens a head may keep alive.   hidden, bias: of the gate.   weight: λ.
        rate, floor, warmup: AdamW's learning rate: up to `rate`, along a cosine to `floor`.   decay: of the weights.

    Source: TRIM-KV, arXiv 2512.03324, section 4.2, as released; the paper adds KL and CE, and a decay of 0.01.
    Differs: the warm-up takes at most a tenth of the run; the gradient is not clipped (the
    release's trainer clips it to a norm of 1 unless told otherwise).
    """

    method: ClassVar[str] = "trim_kv"
    budget: int = 512
    hidden: int = 512
    bias: float = 18.0
    weight: float = 1.0
    rate: float = 2e-4
    floor: float = 1e-6
    warmup: int = 100
    decay: float = 1e-6

    def gate(self, model: object) -> RetentionGate:
        """The gate of a model."""
        return RetentionGate(heads=model.heads, hidden=self.hidden, bias=self.bias)

    def init(self, key: Array, model: object) -> PyTree:
        return init_gate(self.gate(model), key, model)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        x, _ = frozen.forward(batch.tokens)
        gates = self.by_layer(weights, frozen.decoder.layers)
        y, log_beta = frozen.forward(batch.tokens, hook=decaying(self.gate(frozen.decoder)), gates=gates)
        kl, ce = taught(frozen, batch, x, y)
        price = self.price(log_beta, batch)
        loss = (kl + ce) / 2 + self.weight * price
        kept = jnp.stack([alive_share(layer, batch) for layer in log_beta]).mean()
        return Graded(loss, kept, {"kl": kl, "ce": ce, "capacity": price})

    def by_layer(self, weights: PyTree, layers: int) -> PyTree:
        """The weights with a layer axis on every leaf."""
        del layers
        return weights

    def price(self, log_beta: Sequence[Float[Array, "b h t"]], batch: Batch) -> Float[Array, ""]:
        """What is over the budget."""
        return capacity(log_beta, self.budget, batch.valid)

    def check(self, model: Decoder, length: int) -> None:
        del model
        if length <= self.budget:
            raise ValueError(
                f"texts of {length} tokens fit the {self.budget} that a head may keep alive: nothing to forget, lengthen them or "
                "give a smaller budget"
            )

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = cosine(self.rate, steps, warmup=self.warmup, floor=self.floor)
        return optax.adamw(schedule, weight_decay=self.decay)


def alive_share(log_beta: Float[Array, "b h t"], batch: Batch) -> Float[Array, ""]:
    """mean_t S_t / (t + 1), t from 0: of the tokens so far, the share that is alive."""
    share = retained(log_beta) / jnp.arange(1, log_beta.shape[-1] + 1)
    return masked_mean(share, jnp.broadcast_to(batch.valid[:, None], share.shape))
