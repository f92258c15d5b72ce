"""The most attention that an answer pays each token (Locret's label)."""

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32

from kvjax.attention_inputs import AttentionInputs
from kvjax.train.attention import causal_weights


def answer_attention(
    inputs: AttentionInputs, answer: Bool[Array, "b t"], *, window: int | None = None
) -> Float32[Array, "b h t"]:
    """max over the answer's queries, and over the query heads of a KV head, of the layer's attention.

    Args:
        answer: which queries ask.   window: of the layer's attention.

    Source: Locret, arXiv 2410.01805, section 3.2, as released.
    """
    a = causal_weights(inputs, window=window)
    return jnp.where(answer[:, None, None, :, None], a, 0.0).max((2, 3))
