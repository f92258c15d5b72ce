"""Neural Garbage Collection: a model learns by its own answers which blocks of a prompt it can forget.

*Neural Garbage Collection: Learning to Forget while Learning to Reason*, arXiv 2604.18002.
"""

from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Array, Bool, Float32, Int32, PyTree

from kvjax.artefacts.retrofit import own_weights, with_weights
from kvjax.protocols import Decoder
from kvjax.train.answered import answered
from kvjax.train.batch import Batch
from kvjax.train.collecting import advantages, best, collecting, draw_blocks, generate
from kvjax.train.decisions import draw_log_probability
from kvjax.train.forward import Hook, forward
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy
from kvjax.train.schedules import cosine


@dataclass(frozen=True)
class NeuralGarbageCollection(Learner):
    """First -log p of the answers, full cache; then -A (mean log p of drawn answers + weight · mean_l log p of drawn blocks).

    In the second part every prompt is answered `rollouts` times: each layer draws the blocks it keeps (`draw_blocks`), the labelled
    tokens are generated one by one with what is left, and A is a rollout's reward, the share of its answers that are right, less
    the mean over its prompt's rollouts. The gradient comes of a second pass over the drawn texts, each layer with the blocks that
    were drawn for it; scores and likelihoods are made anew there. What is trained are all of the model's parameters.

    Args:
        first: tokens of a prompt; the round comes when they have been read.   size: tokens of a block.
        share: of the blocks that stay, 1 - ε.   window: last queries that judge.
        begin: share of the run that is the first part.   prompts: rows of a batch that the second part answers.
        rollouts: of a prompt.   temperature: of its tokens.   weight: of the second term.
        rate, floor, warmup: AdamW's learning rate in the first part.   later: in the second.   clip: of the gradient's norm.

    Source: arXiv 2604.18002. Differs: the paper begins with a model that answers already; its blocks are 32 tokens, its rewards 0
    or 1, its rounds every few hundred generated tokens, with a retention that falls in stairs and is told in the prompt: here there
    is one round, at the end of the prompt. Whether a score is a probability or its logarithm is not told.
    """

    method: ClassVar[str] = "neural_garbage_collection"
    budget: ClassVar[None] = None
    first: int = 8
    size: int = 1
    share: float = 0.5
    window: int = 5
    begin: float = 0.7
    prompts: int = 8
    rollouts: int = 16
    temperature: float = 1.0
    weight: float = 1.0
    rate: float = 1e-3
    floor: float = 1e-5
    warmup: int = 100
    later: float = 3e-4
    clip: float = 1.0

    @property
    def blocks(self) -> int:
        """m: blocks of a prompt."""
        return self.first // self.size

    @property
    def kept(self) -> int:
        """K = round(share · m), at least 1."""
        return max(1, round(self.share * self.blocks))

    @property
    def hook(self) -> Hook:
        return collecting(first=self.first, window=self.window, size=self.size)

    def start(self, key: Array, frozen: Frozen) -> PyTree:
        del key
        return own_weights(frozen.params)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        model = frozen.replace(params=with_weights(frozen.params, weights))
        early = moment.step < round(self.begin * moment.steps)
        said = jax.lax.cond(early, lambda: self.told(model, batch), lambda: self.collected(model, batch, moment.key))
        return Graded(said[0], said[1], {"reward": said[2], "memory": said[3]})

    def told(self, model: Frozen, batch: Batch) -> tuple[Array, Array, Array, Array]:
        """(cross-entropy, 1, the share of answers that are guessed, 0): training as usual."""
        x, _ = forward(model.decoder, model.params, batch.tokens, remat=False)
        ce, hit = answered(model, batch, x)
        return ce, jnp.float32(1), hit, jnp.float32(0)

    def collected(self, model: Frozen, batch: Batch, key: Array) -> tuple[Array, Array, Array, Array]:
        """(policy-gradient loss, share of a prompt's tokens that stay, mean reward, the term of the blocks)."""
        asked = jax.tree.map(lambda x: jnp.repeat(x[: self.prompts], self.rollouts, axis=0), batch)
        order, tokens = self.rolled_out(jax.lax.stop_gradient(model), asked, key)
        right = masked_rows(tokens == asked.tokens, asked.label)
        gain = advantages(right.reshape(-1, self.rollouts)).reshape(-1)
        x, scores = forward(model.decoder, model.params, tokens, hook=self.hook, gates=best(order, self.blocks), remat=False)
        drawn = draw_log_probability(jnp.stack(scores), order).mean(0)
        target = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
        wrong = model.by_blocks(cross_entropy, x, target)
        said = -masked_rows(wrong, asked.predicted)
        token, memory = (-(gain * log_p).mean() for log_p in (said, drawn))
        return token + self.weight * memory, jnp.float32(self.kept / self.blocks), right.mean(), memory

    def rolled_out(self, model: Frozen, asked: Batch, key: Array) -> tuple[Int32[Array, "l b k"], Int32[Array, "b t"]]:
        """(the blocks that each layer drew, the texts with answers generated from what they left)."""
        of_blocks, of_tokens = jax.random.split(key)
        layers, rows = model.decoder.layers, asked.tokens.shape[0]
        all_blocks = jnp.ones((layers, rows, self.blocks), bool)
        _, scores = forward(model.decoder, model.params, asked.tokens, hook=self.hook, gates=all_blocks, remat=False)
        order, keep = draw_blocks(of_blocks, jnp.stack(scores), self.kept)

        def logits_of(tokens: Array, at: Array) -> Array:
            x, _ = forward(model.decoder, model.params, tokens, hook=self.hook, gates=keep, remat=False)
            return model.unembed(jax.lax.dynamic_slice_in_dim(x, at, 1, axis=1))[:, 0]

        how = dict(first=self.first, temperature=self.temperature)
        return order, generate(logits_of, of_tokens, asked.tokens, asked.label, **how)

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        turn = max(1, round(self.begin * steps))
        early = cosine(self.rate, turn, warmup=self.warmup, floor=self.floor)
        schedule = optax.join_schedules([early, optax.constant_schedule(self.later)], [turn])
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(schedule, b1=0.9, b2=0.95, weight_decay=0.0))

    def check(self, model: Decoder, length: int) -> None:
        del model
        if self.first % self.size or not self.window <= self.first < length:
            raise ValueError(
                f"a prompt of {self.first} tokens must be whole blocks of {self.size}, hold {self.window} queries and be shorter "
                f"than its text of {length} tokens"
            )
        if not 0 < self.share < 1 or self.kept >= self.blocks:
            raise ValueError(f"share is what stays of {self.blocks} blocks, not all of them; got {self.share}")


def masked_rows(x: Array, mask: Bool[Array, "b t"]) -> Float32[Array, " b"]:
    """Each row's mean over its part of the mask."""
    return jnp.where(mask, x.astype(jnp.float32), 0.0).sum(-1) / jnp.maximum(mask.sum(-1), 1)
