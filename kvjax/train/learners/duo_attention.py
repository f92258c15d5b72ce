"""DuoAttention: one number a KV head, how much of its full attention a retrieval task misses.

*DuoAttention: Efficient Long-Context LLM Inference with Retrieval and Streaming Heads*, arXiv 2410.10819, section 2.2.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.train.batch import Batch
from kvjax.train.forward import Attend, Hook
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import hidden_error, masked_mean
from kvjax.train.rates import l1
from kvjax.train.schedules import trapezoid


@dataclass(frozen=True)
class DuoAttention(Learner):
    """loss = mean over labelled tokens of mean_e (h_full - h_mixed)² + weight · mean |α|; α starts at 1 and stays in [0, 1].

    h_mixed is of α · what full attention gave in the full pass + (1 - α) · streaming attention to what the mixed layers below gave.

    Args:
        sinks, recent: keys of the streaming attention.   weight: of the second term.
        rate: AdamW's learning rate, a trapezoid over the run; nothing decays.

    Source: DuoAttention, arXiv 2410.10819, section 2.2 and appendix, as released.
    Differs: of `--data passkeys` the words asked for are labelled (the release labels the questions and what stands between, too).
    """

    method: ClassVar[str] = "duo_attention"
    sinks: int = 128
    recent: int = 256
    weight: float = 0.05
    rate: float = 0.02

    @property
    def budget(self) -> int:
        """Slots of a streaming head."""
        return self.sinks + self.recent

    def init(self, key: Array, model: object) -> PyTree:
        del key
        return {"alpha": jnp.ones((model.layers, model.heads), jnp.float32)}

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        x, full = frozen.forward(batch.tokens, hook=remembered)
        gates = {**weights, "full": jnp.stack(full)}
        y, _ = frozen.forward(batch.tokens, hook=mixed(self.sinks, self.recent), gates=gates)
        error = masked_mean(hidden_error(frozen.norm(x), frozen.norm(y)), batch.label)
        price = l1(weights)
        short = min(1.0, self.budget / batch.tokens.shape[-1])
        share = weights["alpha"].mean()
        return Graded(error + self.weight * price, share + (1 - share) * short, {"error": error, "l1": price})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        return optax.adamw(trapezoid(self.rate, steps), weight_decay=0.0)

    def project(self, weights: PyTree) -> PyTree:
        return {"alpha": jnp.clip(weights["alpha"], 0.0, 1.0)}

    def check(self, model: object, length: int) -> None:
        if length <= self.budget:
            raise ValueError(
                f"texts of {length} tokens fit a streaming head of {self.sinks} + {self.recent}: nothing to learn, lengthen them"
            )


def streaming(t: int, sinks: int, recent: int) -> Float32[Array, "1 1 1 t t"]:
    """A bias of 0 where j < sinks or i - j < recent, -inf elsewhere."""
    j = jnp.arange(t)
    return jnp.where((j < sinks) | (j[:, None] - j < recent), 0.0, -jnp.inf)[None, None, None]


def remembered(
    layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend
) -> tuple[Float[Array, "..."], Float[Array, "..."]]:
    """Attention as it is, given back, too."""
    del layer, weights
    out = attend(inputs)
    return out, out


def mixed(sinks: int, recent: int) -> Hook:
    """A hook whose attention is α · full + (1 - α) · streaming: α a number a KV head, full what the layer gave in another pass."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], tuple[()]]:
        del layer
        alpha = weights["alpha"][None, :, None, None, None].astype(inputs.q.dtype)
        short = attend(inputs, streaming(inputs.q.shape[3], sinks, recent))
        return alpha * weights["full"] + (1 - alpha) * short, ()

    return hook
