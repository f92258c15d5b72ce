"""Attention expected from queries not seen yet (ExpectedAttention)."""

import jax
import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, Need, QueryMoments
from kvjax.kernels.quadratic_forms import quadratic_forms
from kvjax.norms import norm
from kvjax.ranges import NonNegative, Whole
from kvjax.stage import Scorer
from kvjax.types import Keys, Mask, Scores
from kvjax.view import LayerView


def mean_rotation(rope, start: Int32[Array, " b"], future: int) -> Float32[Array, "b d d"]:
    """Mean of the rotary matrices of positions start .. start + future - 1 (half-split pairs).

    The matrices are averaged, not the angles: the mean is not orthogonal and shrinks fast-turning pairs.
    """
    cos, sin = rope.cos_sin(start[:, None] + jnp.arange(future))
    c, s = (jnp.concatenate([x, x], -1) for x in (cos.mean(1), sin.mean(1)))
    half = c.shape[-1] // 2
    turn = jnp.zeros((2 * half, 2 * half)).at[half:, :half].set(jnp.eye(half)).at[:half, half:].set(-jnp.eye(half))
    return c[..., :, None] * jnp.eye(2 * half) + s[..., :, None] * turn


def gaussian_logits(k: Keys, mu: Float32[Array, "b h g d"], sigma: Float32[Array, "b h g d d"] | None) -> Float32[Array, "b h g n"]:
    """log E exp(q k / sqrt(d)) for q ~ N(mu, sigma): k·mu/sqrt(d) + k' sigma k / (2 d)."""
    d = k.shape[-1]
    mean = mu / jnp.sqrt(jnp.float32(d))
    if sigma is None:
        return jnp.einsum("bhnd,bhgd->bhgn", k.astype(jnp.float32), mean)
    return quadratic_forms(k, sigma / (2 * d), mean)


def expected_mass(e: Float32[Array, "b h g n"], counted: Mask) -> Scores:
    """Group mean of softmax_n(e) over the counted slots; zero elsewhere."""
    e = jnp.where(counted[:, :, None], e, jnp.finfo(jnp.float32).min)
    return jnp.where(counted, jax.nn.softmax(e, -1).mean(2), 0.0)


@struct.dataclass
class ExpectedAttention(Scorer):
    """u = (mean_g softmax_n(k·mu' / sqrt(d) + k' Sigma' k / (2d)) + eps) · ||v||.

    mu, Sigma: mean and covariance of the pre-rotary queries after the first `sinks`; mu' = R mu, Sigma' = R Sigma R' with R the
    mean rotation over the next `future` positions. The softmax leaves out the first `sinks` keys.

    Args:
        future: positions ahead over which the rotation is averaged.
        sinks: first positions left out of the query statistics and the softmax.
        covariance: whether to use the second moment. value_norm: whether to multiply by ||v||.
        eps: added to the mass before the value norm (0.01-0.02 with head-adaptive budgets).

    Source: Expected Attention, arXiv 2510.00636, section 3.
    """

    future: Whole = struct.field(pytree_node=False, default=512)
    sinks: Whole = struct.field(pytree_node=False, default=4)
    covariance: bool = struct.field(pytree_node=False, default=True)
    value_norm: bool = struct.field(pytree_node=False, default=True)
    eps: NonNegative = 0.0

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({QueryMoments(self.sinks)})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        moments, r = evidence.moments(self.sinks), mean_rotation(evidence.rope, evidence.length, self.future)
        mu = jnp.einsum("bdc,bhgc->bhgd", r, moments.mean)
        sigma = jnp.einsum("bij,bhgjk,blk->bhgil", r, moments.covariance(), r) if self.covariance else None
        mass = expected_mass(gaussian_logits(view.k, mu, sigma), view.valid & (view.pos >= self.sinks))
        return (mass + self.eps) * norm(view.v) if self.value_norm else mass
