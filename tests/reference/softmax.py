"""Softmax over the last axis, float64."""

import numpy as np
from jaxtyping import Float


def softmax(logits: Float[np.ndarray, "*a n"]) -> Float[np.ndarray, "*a n"]:
    """exp(z - max z) / sum exp(z - max z); entries of -inf get probability 0."""
    shifted = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return shifted / shifted.sum(axis=-1, keepdims=True)
