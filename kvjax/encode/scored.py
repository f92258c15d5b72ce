"""Attention from scores: what encoders use whose keys or values no fused kernel reads."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float32, Int32

from kvjax.attend_context import AttendContext
from kvjax.kernels.ragged_attention import log_denominator, probabilities
from kvjax.types import Queries


def biased(
    scores: Float32[Array, "b h g t n"], bias: Float32[Array, " s"], start: Int32[Array, "b h"]
) -> Float32[Array, "b h g t n"]:
    """Scores with their slots' biases; -inf stays."""
    slots = start[..., None] + jnp.arange(scores.shape[-1], dtype=jnp.int32)
    found = jnp.take(bias, slots, mode="clip")[:, :, None, None]
    return jnp.where(scores > -jnp.inf, scores + found, -jnp.inf)


def scored_attention(encode: Any, q: Queries, cache: Any, context: AttendContext):
    """(out, lse) of q over every slot held: softmax of the encoder's scores, values weighed where they live."""
    scores = encode.scores(q, cache, context)
    lse = log_denominator(scores)
    out = encode.placement.weighted_sum(cache.v, cache.start[context.layer], probabilities(scores, lse))
    return out.astype(q.dtype), lse
