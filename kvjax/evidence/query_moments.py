"""Mean and covariance of queries before the rotary embedding."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence.need import Need, Shape, Tokens
from kvjax.ranges import Whole


@struct.dataclass
class Moments:
    """Running moments of pre-rotary queries: count, mean, and the sum of outer products of deviations from the mean.

    Deviations, not raw squares: projections with large biases would lose the covariance in float32.
    """

    count: Float32[Array, " b"]
    mean: Float32[Array, "b h g d"]
    spread: Float32[Array, "b h g d d"]

    def covariance(self) -> Float32[Array, "b h g d d"]:
        """Second central moment, divided by the count (not count - 1)."""
        return self.spread / jnp.maximum(self.count, 1.0)[:, None, None, None, None]


def _widened(x: Float32[Array, " b"], axes: int) -> Array:
    return x.reshape(x.shape + (1,) * axes)


def merge_moments(one: Moments, two: Moments) -> Moments:
    """Moments of both samples together (Chan, Golub and LeVeque, 1979, eq. 2.1)."""
    count = one.count + two.count
    share = two.count / jnp.maximum(count, 1.0)
    delta = two.mean - one.mean
    between = delta[..., :, None] * delta[..., None, :] * _widened(one.count * share, 4)
    return Moments(count=count, mean=one.mean + delta * _widened(share, 3), spread=one.spread + two.spread + between)


@struct.dataclass
class QueryMoments(Need):
    """Mean and covariance of the pre-rotary queries after the first `skip` positions. Costs d² a query head."""

    carried: ClassVar[bool] = True
    skip: Whole = struct.field(pytree_node=False, default=4)

    @property
    def key(self) -> str:
        return f"query_moments_{self.skip}"

    def empty(self, shape: Shape) -> Moments:
        heads = (shape.b, shape.h, shape.g, shape.d)
        return Moments(
            count=jnp.zeros(shape.b, jnp.float32),
            mean=jnp.zeros(heads, jnp.float32),
            spread=jnp.zeros((*heads, shape.d), jnp.float32),
        )

    def observe(self, old: Moments, block: Tokens) -> Moments:
        t = jnp.arange(block.inputs.q.shape[3])
        real = (t < block.count[:, None]) & (block.offset[:, None] + t >= self.skip)
        keep = real[:, None, None, :, None]
        count = real.sum(-1).astype(jnp.float32)
        q = block.inputs.q_raw.astype(jnp.float32)
        mean = jnp.where(keep, q, 0.0).sum(3) / jnp.maximum(count, 1.0)[:, None, None, None]
        off = jnp.where(keep, q - mean[..., None, :], 0.0)
        return merge_moments(old, Moments(count=count, mean=mean, spread=jnp.einsum("bhgtd,bhgtc->bhgdc", off, off)))
