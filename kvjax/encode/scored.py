"""Attention from scores: what encoders use whose keys or values no fused kernel reads."""

from typing import Any

from kvjax.kernels.ragged_attention import log_denominator, probabilities


def scored_attention(encode: Any, q, cache: Any, layer: int, *, positions, window: int | None, cap: int):
    """(out, lse) of q over every slot held: softmax of the encoder's scores, values weighed where they live."""
    scores = encode.scores(q, cache, layer, positions=positions, window=window, cap=cap)
    lse = log_denominator(scores)
    out = encode.values.weigh(cache.v, cache.start[layer], probabilities(scores, lse))
    return out.astype(q.dtype), lse
