"""DBTrimKV: gates that forget on one scale for the whole model, taught by the same model that forgets nothing.

*Make Each Token Count: Towards Improving Long-Context Performance with KV Cache Eviction*, arXiv 2605.09649, section 4.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from kvjax.gates.deep_retention import DeepRetentionGate
from kvjax.gates.gate import init_gate
from kvjax.protocols import Decoder
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.learners.trim_kv import alive_share
from kvjax.train.schedules import cosine
from kvjax.train.taught import taught
from kvjax.train.trim_kv import decaying, model_capacity


@dataclass(frozen=True)
class MakeEachTokenCount(Learner):
    """loss = (KL(teacher ‖ student) + CE) / 2 on labelled tokens + λ · `model_capacity`, one budget for all heads together.

    Args:
        budget: M, tokens that a head may keep alive on average.   hidden, bias: of the gate.
        shared: whether all layers share the last projection and its bias, as the paper has it.   weight: λ.
        rate, floor, warmup: AdamW's learning rate: up to `rate`, along a cosine to `floor`.   decay: of the weights.

    Source: Make Each Token Count, arXiv 2605.09649, section 4, as released.
    Differs: the warm-up takes at most a tenth of the run.
    """

    method: ClassVar[str] = "make_each_token_count"
    budget: int = 128
    hidden: int = 512
    bias: float = 18.0
    shared: bool = True
    weight: float = 1.0
    rate: float = 2e-4
    floor: float = 1e-6
    warmup: int = 100
    decay: float = 1e-6

    def gate(self, model: Decoder) -> DeepRetentionGate:
        """The gate of a model."""
        return DeepRetentionGate(heads=model.heads, hidden=self.hidden, bias=self.bias)

    def init(self, key: Array, model: Decoder) -> PyTree:
        weights = init_gate(self.gate(model), key, model)
        return {**weights, "down": jax.tree.map(lambda w: w[0], weights["down"])} if self.shared else weights

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        gates = of_layers(weights, frozen.decoder.layers) if self.shared else weights
        x, _ = frozen.forward(batch.tokens)
        y, log_beta = frozen.forward(batch.tokens, hook=decaying(self.gate(frozen.decoder)), gates=gates)
        kl, ce = taught(frozen, batch, x, y)
        price = model_capacity(log_beta, self.budget, batch.valid)
        kept = jnp.stack([alive_share(layer, batch) for layer in log_beta]).mean()
        return Graded((kl + ce) / 2 + self.weight * price, kept, {"kl": kl, "ce": ce, "capacity": price})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = cosine(self.rate, steps, warmup=self.warmup, floor=self.floor)
        return optax.adamw(schedule, weight_decay=self.decay)


def of_layers(weights: PyTree, layers: int) -> PyTree:
    """The weights with the shared last projection once for every layer."""
    return {**weights, "down": jax.tree.map(lambda w: jnp.broadcast_to(w, (layers, *w.shape)), weights["down"])}
