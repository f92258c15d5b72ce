"""KVzap: a small map of hidden states, taught what reading a text a second time would say of each token.

*KVzap: Fast, Adaptive, and Faithful KV Cache Pruning*, arXiv 2601.07891, section 3.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.evidence import RelativeAttention
from kvjax.gates.gate import init_gate
from kvjax.gates.surrogate import SurrogateGate
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import masked_mean
from kvjax.train.ranks import rank_correlation
from kvjax.train.reading import reading
from kvjax.train.regression import squared_error
from kvjax.train.second_reading import log_scores


@dataclass(frozen=True)
class KVzap(Learner):
    """loss = mean (gate(x_j) - s_j)² over layers, heads and tokens, s the logarithm of what KVzip's second pass says of a token.

    A text is read, then read again chunk by chunk behind a request (`kvjax.second_pass`), once for every batch it is in; what the
    request looks at does not count. The text's first `system` tokens have no score and are left out. The terms also tell Spearman's
    ρ of gate and label, mean over heads, and how much of the labels' variance within a text and head is explained: nothing by the
    best constant, less than nothing by worse.

    Args:
        hidden: width of the layer between; 0 for the linear map.   threshold: where predictions start, and what `kept` counts.
        rate: AdamW's learning rate, along a cosine to 0.   decay: of the weights.   clip: of the gradient's norm.
        system, chunk: as in `kvjax.prefill.RepeatedContext`.   first, further: ids of its requests, for models without a tokenizer.

    Source: KVzap, arXiv 2601.07891, section 3, as released.
    Differs: every token of a text counts (the release draws 500); the linear map is trained as the other one is (the release solves
    a ridge regression); the last bias starts at the threshold.
    """

    method: ClassVar[str] = "kvzap"
    budget: ClassVar[None] = None
    hidden: int = 512
    threshold: float = -4.0
    rate: float = 5e-3
    decay: float = 0.01
    clip: float = 1.0
    system: int = 4
    chunk: int = 2048
    first: tuple[int, ...] | None = None
    further: tuple[int, ...] | None = None

    @property
    def repeated(self) -> RepeatedContext:
        """The second pass."""
        asked = dict(first=self.first, further=self.further)
        return RepeatedContext(need=RelativeAttention(), chunk=self.chunk, system=self.system, own=True, **asked)

    def gate(self, model: Decoder) -> SurrogateGate:
        """The gate of a model."""
        return SurrogateGate(heads=model.heads, hidden=self.hidden)

    def init(self, key: Array, model: Decoder) -> PyTree:
        weights = init_gate(self.gate(model), key, model)
        down = weights["down"]
        return {**weights, "down": {**down, "bias": jnp.full_like(down["bias"], self.threshold)}}

    def measure(self, lm: LanguageModel, batch: Batch) -> Batch:
        tokens, valid = (np.asarray(x).reshape(-1, x.shape[-1]) for x in (batch.tokens, batch.valid))
        found = log_scores(lm, [ids[real].tolist() for ids, real in zip(tokens, valid, strict=True)], self.repeated)
        wide = [np.pad(s, ((0, 0), (0, 0), (0, tokens.shape[-1] - s.shape[-1]))) for s in found]
        return batch.replace(measured=jnp.asarray(np.stack(wide).reshape(*batch.tokens.shape[:-1], *wide[0].shape)))

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        _, said = frozen.forward(batch.tokens, hook=reading(self.gate(frozen.decoder)), gates=weights)
        guess, wanted = jnp.stack(said, axis=1), batch.measured
        told = jnp.broadcast_to(self.told(batch)[:, None, None], guess.shape)
        error = masked_mean(squared_error(guess, wanted), told)
        rank = rank_correlation(guess, wanted, told).mean()
        terms = {"squared_error": error, "rank_correlation": rank, "explained": 1 - error / spread(wanted, told)}
        return Graded(error, masked_mean((guess >= self.threshold).astype(jnp.float32), told), terms)

    def told(self, batch: Batch) -> Array:
        """Tokens [b t] that the second pass tells of."""
        return batch.valid & (jnp.arange(batch.tokens.shape[-1]) >= self.system)

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = optax.cosine_decay_schedule(self.rate, steps)
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(schedule, weight_decay=self.decay))

    def check(self, model: Decoder, length: int) -> None:
        if length <= self.system:
            raise ValueError(f"texts of {length} tokens have none behind the {self.system} that no score is of: lengthen them")
        if 2 * length > model.max_positions:
            raise ValueError(
                f"a text of {length} tokens is read twice, and the model's context has {model.max_positions}: shorten it"
            )


def spread(wanted: Float[Array, "b l h t"], told: Bool[Array, "b l h t"]) -> Float32[Array, ""]:
    """The labels' variance within each text, layer and head, mean over tokens; at least 1e-12."""
    count = jnp.maximum(told.sum(-1, keepdims=True), 1)
    mean = jnp.where(told, wanted, 0.0).sum(-1, keepdims=True) / count
    return jnp.maximum(masked_mean(squared_error(wanted, jnp.broadcast_to(mean, wanted.shape)), told), 1e-12)
