"""How well labelled tokens are predicted."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32

from kvjax.train.batch import Batch
from kvjax.train.frozen import Frozen
from kvjax.train.losses import cross_entropy, masked_mean


def answered(model: Frozen, batch: Batch, x: Float[Array, "b t e"]) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
    """(mean -log p of labelled tokens, share of them that are the likeliest).

    Args:
        x: residual stream after the last layer.
    """

    def two(logits: Array, target: Array) -> tuple[Array, Array]:
        return cross_entropy(logits, target), (logits.argmax(-1) == target).astype(jnp.float32)

    ce, hit = model.by_blocks(two, x, batch.next_tokens)
    return masked_mean(ce, batch.predicted), masked_mean(hit, batch.predicted)
