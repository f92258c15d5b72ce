"""Consecutive slots taken together: one number, or one row of numbers, for every run of them."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Int32, UInt32


def _by_head(reduce, x: Array, segment: Int32[Array, "*b n"]) -> Array:
    n = segment.shape[-1]
    rest = x.shape[segment.ndim :]
    out = jax.vmap(lambda x, s: reduce(x, s, num_segments=n))(x.reshape(-1, n, *rest), segment.reshape(-1, n))
    return out.reshape(x.shape)


def sums(x: Array, segment: Int32[Array, "*b n"]) -> Array:
    """Σ of x [..., n, ...] over the slots of each segment, [..., segments, ...]; as many segments as slots, empty ones 0."""
    return _by_head(jax.ops.segment_sum, x, segment)


def of_slot(x: Array, segment: Int32[Array, "*b n"]) -> Array:
    """What is known of each segment, at every slot of it."""
    return jnp.take_along_axis(x, segment.reshape(*segment.shape, *(1,) * (x.ndim - segment.ndim)), segment.ndim - 1)


def first_largest(order: UInt32[Array, "*b n"], segment: Int32[Array, "*b n"]) -> Int32[Array, "*b n"]:
    """The slot of largest order of each segment, the lower one on ties; at every slot of it."""
    best = of_slot(_by_head(jax.ops.segment_max, order, segment), segment)
    slot = jnp.broadcast_to(jnp.arange(order.shape[-1], dtype=jnp.int32), order.shape)
    here = jnp.where(order == best, slot, order.shape[-1])
    return of_slot(_by_head(jax.ops.segment_min, here, segment), segment)
