"""Stochastic KV routing (R-CLA): the model itself learns to read the keys and values of earlier layers in place of its own.

*Stochastic KV Routing: Enabling Adaptive Depth-Wise Cache Sharing*, arXiv 2604.22782.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, PyTree

from kvjax.artefacts.retrofit import own_weights, with_weights
from kvjax.protocols import Decoder
from kvjax.train.answered import answered
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.routed import random_sources, routed_forward
from kvjax.train.schedules import cosine


@dataclass(frozen=True)
class StochasticKVRouting(Learner):
    """loss = mean -log p of labelled tokens; layer l reads itself or, with probability `share`, a layer drawn evenly below it.

    Drawn anew for every text and layer in every step; queries are always a layer's own. What is trained are all of the model's
    parameters: from scratch where it begins at random, fine-tuned where it does not. `models.share_layers` serves the result.
    `kept` is the share of layers that read themselves. The terms also tell the share of labelled tokens that are guessed.

    Args:
        share: chance that a layer other than 0 reads another; 0 is training as usual.
        rate, floor, warmup: AdamW's learning rate: up to `rate`, along a cosine to `floor`.   decay: of the weights.
        clip: of the gradient's norm.   remat: whether layers are computed again on the way back.

    Source: arXiv 2604.22782. Differs: accounts of it differ in whether its p is the chance to share or not to, so that it is named
    `share` here; they do not tell whether it is drawn by text or by batch; optimiser and rates are ours.
    """

    method: ClassVar[str] = "stochastic_kv_routing"
    budget: ClassVar[None] = None
    share: float = 0.5
    rate: float = 1e-3
    floor: float = 1e-5
    warmup: int = 100
    decay: float = 0.0
    clip: float = 1.0
    remat: bool = True

    def start(self, key: Array, frozen: Frozen) -> PyTree:
        del key
        return own_weights(frozen.params)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        model = frozen.replace(params=with_weights(frozen.params, weights))
        rows, layers = batch.tokens.shape[0], frozen.decoder.layers
        source = random_sources(moment.key, rows, layers, self.share)
        x = routed_forward(model.decoder, model.params, batch.tokens, source, remat=self.remat)
        ce, hit = answered(model, batch, x)
        own = (source == jnp.arange(layers)).astype(jnp.float32).mean()
        return Graded(ce, own, {"accuracy": hit})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = cosine(self.rate, steps, warmup=self.warmup, floor=self.floor)
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=self.decay))

    def check(self, model: Decoder, length: int) -> None:
        del length
        if not 0 <= self.share <= 1:
            raise ValueError(f"share is the chance that a layer reads another, from 0 to 1; got {self.share}")
        if model.layers < 2 or len(set(model.windows)) > 1:
            raise ValueError(
                f"layers with the sliding windows {model.windows} cannot read each other: take a model of two layers or more that "
                "all have the same one"
            )
