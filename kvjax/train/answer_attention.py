"""The most attention that an answer pays each token (Locret's label), and which texts have an answer."""

import jax.numpy as jnp
import numpy as np
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


def check_answers(method: str, answer: Bool[Array, "*a b t"], prompt: Bool[Array, "*a b t"]) -> None:
    """Raise ValueError for a text without an answer, or with fewer than two tokens of a prompt."""
    answers, prompts = (int(np.asarray(x).sum(-1).min()) for x in (answer, prompt))
    if answers < 1 or prompts < 2:
        raise ValueError(
            f"a text has {answers} tokens of answer at least and {prompts} of prompt: {method} learns what an answer looks at in a "
            "prompt, so label the answer alone (--data answers, keys or passkeys)"
        )
