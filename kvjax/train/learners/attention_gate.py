"""Attention-Gate: a small attention in front of each layer's own learns which tokens what follows can do without.

*In-context KV-Cache Eviction for LLMs via Attention-Gate*, arXiv 2410.12876, section 3.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import jax.numpy as jnp
import optax
from jaxtyping import Array, Float32, PyTree

from kvjax.gates.attention_gate import AttentionGate as Gate
from kvjax.gates.gate import init_gate
from kvjax.protocols import Decoder
from kvjax.train.batch import Batch
from kvjax.train.decisions import straight_through
from kvjax.train.flagged import flagging
from kvjax.train.frozen import Frozen
from kvjax.train.learner import Graded, Learner, Moment
from kvjax.train.losses import cross_entropy, masked_mean
from kvjax.train.rates import rate_deviation
from kvjax.train.schedules import cosine


@dataclass(frozen=True)
class AttentionGate(Learner):
    """loss = CE of labelled tokens + weight · Σ_l |mean p_l - target|, p_l what layer l's gate says of its tokens and heads.

    Every query sees the flagged tokens before it, those with p > `threshold`, and itself; the derivative of a flag is that of p.

    Args:
        target: β, the share of tokens that is to stay.   weight: α.   threshold: of p.
        parts, width: of the gate's attention, which is causal.   bias: the logit that gates start from.
        sinks: first tokens that always stay.   floor: what is left of the weight of a hidden token (`kvjax.train.flagged`).
        rate: AdamW's learning rate, up over `warmup` steps and along a cosine to 0; weights decay by 1e-4 of it.
        clip: of the gradient's norm.

    Source: Attention-Gate, arXiv 2410.12876, section 3.
    Differs: the printed penalty has no absolute value; the model is frozen (the paper trains low-rank updates of it, too); the
    paper's numbers are not told.
    """

    method: ClassVar[str] = "attention_gate"
    target: float = 0.5
    weight: float = 1.0
    threshold: float = 0.5
    parts: int = 4
    width: int = 32
    bias: float = 2.0
    sinks: int = 1
    floor: float = 1e-6
    rate: float = 1e-3
    warmup: int = 100
    clip: float = 1.0

    @property
    def budget(self) -> float:
        """The share of the cache that stays."""
        return self.target

    def gate(self, model: Decoder) -> Gate:
        """The gate of a model."""
        return Gate(heads=model.heads, parts=self.parts, width=self.width)

    def init(self, key: Array, model: Decoder) -> PyTree:
        weights = init_gate(self.gate(model), key, model)
        out = weights["out"]
        return {**weights, "out": {**out, "bias": jnp.full_like(out["bias"], self.bias)}}

    def decide(self, p: Float32[Array, "b h t"]) -> Float32[Array, "b h t"]:
        """Flags, and their derivative."""
        return straight_through(p, self.threshold)

    def loss(self, weights: PyTree, frozen: Frozen, batch: Batch, moment: Moment) -> Graded:
        del moment
        hook = flagging(self.gate(frozen.decoder), self.decide, sinks=self.sinks, floor=self.floor)
        x, said = frozen.forward(batch.tokens, hook=hook, gates=weights)
        ce = masked_mean(frozen.by_blocks(cross_entropy, x, batch.next_tokens), batch.predicted)
        p, flags = (means(of, batch) for of in zip(*said, strict=True))
        price = rate_deviation(p, self.target)
        return Graded(ce + self.weight * price, flags.mean(), {"ce": ce, "deviation": price})

    def optimiser(self, steps: int) -> optax.GradientTransformation:
        schedule = cosine(self.rate, steps, warmup=self.warmup, floor=0.0)
        return optax.chain(optax.clip_by_global_norm(self.clip), optax.adamw(schedule))

    def check(self, model: Decoder, length: int) -> None:
        del model, length
        if not 0 < self.target < 1:
            raise ValueError(f"target is the share of tokens that stays, between 0 and 1; got {self.target}")


def means(said: Sequence[Float32[Array, "b h t"]], batch: Batch) -> Float32[Array, " l"]:
    """Each layer's mean over heads and the tokens of texts."""
    return jnp.stack([masked_mean(x, jnp.broadcast_to(batch.valid[:, None], x.shape)) for x in said])
