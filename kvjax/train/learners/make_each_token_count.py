"""DBTrimKV: gates that forget on one scale for the whole model, taught by the same model that forgets nothing.

*Make Each Token Count: Towards Improving Long-Context Performance with KV Cache Eviction*, arXiv 2605.09649, section 4.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PyTree

from kvjax.gates.deep_retention import DeepRetentionGate
from kvjax.protocols import Decoder
from kvjax.train.batch import Batch
from kvjax.train.learners.trim_kv import TrimKV
from kvjax.train.trim_kv import model_capacity


@dataclass(frozen=True)
class MakeEachTokenCount(TrimKV):
    """loss = (KL(teacher ‖ student) + CE) / 2 on labelled tokens + λ · `model_capacity`, one budget for all heads together.

    Args:
        budget: M, tokens that a head may keep alive on average.   hidden, bias: of the gate.
        shared: whether all layers share the last projection and its bias, as the paper has it.   weight: λ.
        rate, floor, warmup: AdamW's learning rate: up to `rate`, along a cosine to `floor`.   decay: of the weights.

    Source: Make Each Token Count, arXiv 2605.09649, section 4, as released.
    Differs: the warm-up takes at most a tenth of the run; the gradient is not clipped (the
    release's trainer clips it to a norm of 1 unless told otherwise).
    """

    method: ClassVar[str] = "make_each_token_count"
    budget: int = 128
    shared: bool = True

    def gate(self, model: Decoder) -> DeepRetentionGate:
        """The gate of a model."""
        return DeepRetentionGate(heads=model.heads, hidden=self.hidden, bias=self.bias)

    def init(self, key: Array, model: Decoder) -> PyTree:
        weights = super().init(key, model)
        return {**weights, "down": jax.tree.map(lambda w: w[0], weights["down"])} if self.shared else weights

    def by_layer(self, weights: PyTree, layers: int) -> PyTree:
        return of_layers(weights, layers) if self.shared else weights

    def price(self, log_beta: Sequence[Float[Array, "b h t"]], batch: Batch) -> Float[Array, ""]:
        """What all heads together hold over the budget of the model."""
        return model_capacity(log_beta, self.budget, batch.valid)


def of_layers(weights: PyTree, layers: int) -> PyTree:
    """The weights with the shared last projection once for every layer."""
    return {**weights, "down": jax.tree.map(lambda w: jnp.broadcast_to(w, (layers, *w.shape)), weights["down"])}
