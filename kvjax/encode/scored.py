"""Attention from scores: what encoders use whose keys or values no fused kernel reads."""

from typing import Any

import jax.numpy as jnp
from jaxtyping import Array, Float32

from kvjax.kernels.ragged_attention import probabilities

#: Below every score, and finite: exp(-inf - LOW) is 0 and not NaN.
LOW = -1e30


def log_denominator(scores: Float32[Array, "b h g t n"]) -> Float32[Array, "b h g t"]:
    """log Σ_n exp(scores), -inf where a query sees nothing."""
    high = jnp.maximum(scores.max(-1), LOW)
    total = jnp.exp(scores - high[..., None]).sum(-1)
    return jnp.where(total > 0, high + jnp.log(jnp.where(total > 0, total, 1.0)), -jnp.inf)


def scored_attention(encode: Any, q, cache: Any, layer: int, *, positions, window: int | None, cap: int):
    """(out, lse) of q over every slot held: softmax of the encoder's scores, values weighed where they live."""
    scores = encode.scores(q, cache, layer, positions=positions, window=window, cap=cap)
    lse = log_denominator(scores)
    out = encode.values.weigh(cache.v, cache.start[layer], probabilities(scores, lse))
    return out.astype(q.dtype), lse
