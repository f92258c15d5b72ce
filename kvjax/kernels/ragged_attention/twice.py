"""Attention and probabilities from two readings of the keys."""

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from kvjax.kernels.softmax import softmax


def watching(attention: Callable, scores: Callable) -> Callable:
    """`api.attention_with_weights` by an implementation's `attention` and `scores`."""

    @partial(jax.jit, static_argnames=("heads", "cap", "window"))
    def attention_with_weights(
        q, k, v, pos, start, length, q_pos, upto, bias=None, *, heads: tuple[int, ...], cap: int, window: int | None
    ):
        """See `api.attention_with_weights`."""
        out, lse = attention(q, k, v, pos, start, length, q_pos, bias, window=window)
        some, count = jnp.array(heads, jnp.int32), jnp.minimum(length[:, heads], upto)
        z = scores(q[:, some], k, pos, start[:, some], count, q_pos, bias, cap=cap, window=window)
        return out, lse, softmax(z)

    return attention_with_weights
