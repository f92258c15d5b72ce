"""Locret: heads that guess, of a token of the prompt, the most attention that the answer will pay it.

*Locret: Enhancing Eviction in Long-Context LLM Inference with Trained Retaining Heads*, arXiv 2410.01805, section 3.2.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, init_gate, read
from kvjax.gates.retaining import RetainingGate
from kvjax.protocols import Decoder, LanguageModel
from kvjax.train.answer_attention import answer_attention, check_answers
from kvjax.train.batch import Batch
from kvjax.train.forward import Attend, Hook
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import masked_mean
from kvjax.train.ranks import rank_correlation
from kvjax.train.regression import neighbours, smooth_l1
from kvjax.train.schedules import rise_and_fall


@dataclass(frozen=True)
class Locret(Learner):
    """loss = mean smooth L1 of the guess to `answer_attention` + weight · Σ_layers mean (guess_(j+1) - guess_j)².

    Means are over the prompt's tokens and heads, the first over layers, too. The labelled tokens are the answer. The terms also
    tell Spearman's ρ of guess and label, mean over heads.

    Args:
        budget: slots of a head that `kept` tells of; the loss knows none.   hidden: of the gate.   weight: of the second term.
        rate: AdamW's learning rate, up over the share `rise` of the run and down again to 0.   decay: of the weights.
        clip: of each number of the gradient.

    Source: Locret, arXiv 2410.01805, section 3.2, as released (2,000 of 3,000 steps go up).
    """

    method: ClassVar[str] = "locret"
    budget: int = 6000
    hidden: int = 1024
    weight: float = 0.0025
    rate: float = 5e-4
    rise: float = 2 / 3
    decay: float = 0.01
    clip: float = 0.5

    def gate(self, model: Decoder) -> RetainingGate:
        """The gate of a model."""
        return RetainingGate(heads=model.heads, hidden=self.hidden)

    def init(self, key: Array, model: Decoder) -> PyTree:
        return init_gate(self.gate(model), key, model)

    def measure(self, lm: LanguageModel, batch: Batch) -> Batch:
        """The batch as it is. Raises ValueError for a text without an answer, or with fewer than two tokens before it."""
        del lm
        check_answers(self.method, batch.label, batch.valid & ~batch.label)
        return batch

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        hook = guessing(self.gate(frozen.decoder), batch.label, frozen.decoder.windows)
        _, found = frozen.forward(batch.tokens, hook=hook, gates=weights)
        guess, label = (jnp.stack(x, axis=1) for x in zip(*found, strict=True))
        prompt = batch.valid & ~batch.label
        mine = jnp.broadcast_to(prompt[:, None, None], guess.shape)
        error = masked_mean(smooth_l1(guess, label), mine)
        rough = guess.shape[1] * masked_mean(neighbours(guess), mine[..., 1:] & mine[..., :-1])
        kept = jnp.minimum(1.0, self.budget / prompt.sum(-1)).mean()
        terms = {"smooth_l1": error, "neighbours": rough, "rank_correlation": rank_correlation(guess, label, mine).mean()}
        return Graded(error + self.weight * rough, kept, terms)

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = rise_and_fall(self.rate, steps, rise=self.rise)
        return optax.chain(optax.clip(self.clip), optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=self.decay))


def guessing(gate: Gate, answer: Bool[Array, "b t"], windows: tuple[int | None, ...]) -> Hook:
    """A hook that leaves attention as it is and gives back (guess, label) [b h t] of the layer."""

    def hook(
        layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend
    ) -> tuple[Float[Array, "..."], tuple[Array, Array]]:
        label = answer_attention(inputs, answer, window=windows[layer])
        return attend(inputs), (read(gate, weights, inputs), label)

    return hook
