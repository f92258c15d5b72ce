"""The attention rows of an observation window, one by one, for scores that are no sum of them."""

import math

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.kernels.softmax import softmax
from kvjax.kernels.window_scores import sees
from kvjax.types import Keys, Mask, Positions
from kvjax.view import LayerView

Rows = Float32[Array, "b h g w n"]
Real = Bool[Array, "b w"]


def window_rows(
    q: Float[Array, "b h g w d"], k: Keys, *, pos: Positions, valid: Mask, length: Int32[Array, " b"],
    window: Int32[Array, " b"] | None = None,
) -> Rows:  # fmt: skip
    """p_ij = softmax_j(q_i k_j / sqrt(d)) of the last w queries of a text of `length` tokens; 0 where a query sees no slot.

    Query i stands at position length - w + i, and sees the last `window` positions up to its own, None for all. Holds w·n numbers a
    query head.
    """
    w, d = q.shape[3:]
    z = jnp.einsum("bhgwd,bhnd->bhgwn", q, k, preferred_element_type=jnp.float32) / math.sqrt(d)
    at = length[:, None] - w + jnp.arange(w, dtype=jnp.int32)
    return softmax(jnp.where(sees(pos, valid, at, window), z, -jnp.inf))


def real_rows(length: Int32[Array, " b"], w: int) -> Real:
    """Which of the last w queries a text of `length` tokens has."""
    return jnp.arange(w, dtype=jnp.int32) >= w - length[:, None]


def before_window(view: LayerView, length: Int32[Array, " b"], w: int) -> Mask:
    """The slots before the last w tokens."""
    return view.valid & (view.pos < (length - w)[:, None, None])


def mean_and_variance(p: Rows, real: Real) -> tuple[Float32[Array, "b h g n"], Float32[Array, "b h g n"]]:
    """Mean and unbiased variance of each column over the real rows; variance 0 of a single row."""
    here = real[:, None, None, :, None]
    rows = real.sum(-1).astype(jnp.float32)[:, None, None, None]
    mean = jnp.where(here, p, 0.0).sum(3) / jnp.maximum(rows, 1)
    off = jnp.where(here, p - mean[..., None, :], 0.0)
    return mean, (off * off).sum(3) / jnp.maximum(rows - 1, 1)
