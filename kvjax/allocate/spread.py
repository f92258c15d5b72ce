"""How shares of a total become integers under a cap: largest remainders, or clipped and spread."""

from functools import partial

import jax
import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float, Int32, Integer

from kvjax.allocate.exact import exact_alloc

Slots = Int32[Array, "*b l"]


def spread(budgets: Integer[Array, "*b l"], extra: Integer[Array, "*b"], most: Integer[Array, "*b l"]) -> Integer[Array, "*b l"]:
    """`extra` slots evenly over the layers below their cap, the remainder one each to the lowest of them."""
    below = budgets < most
    takers, rank = below.sum(-1, keepdims=True), jnp.cumsum(below, -1) - 1
    share, rest = jnp.divmod(jnp.maximum(extra, 0)[..., None], jnp.maximum(takers, 1))
    return budgets + jnp.where(below, share + (rank < rest), 0)


def adjust(raw: Float[Array, "*b l"], total: Integer[Array, "*b"], most: Integer[Array, "*b l"]) -> Integer[Array, "*b l"]:
    """Truncate, clip to the cap, spread what was clipped off, then spread what is missing to the total; may exceed the cap."""
    whole = lax.convert_element_type(jnp.trunc(raw), most.dtype)
    clipped = jnp.minimum(whole, most)
    budgets = spread(clipped, (whole - clipped).sum(-1), most)
    return spread(budgets, total - budgets.sum(-1), most)


@partial(jax.jit, inline=True)
def _shared(w, total, most):
    part = w / jnp.maximum(w.sum(-1, keepdims=True), jnp.finfo(w.dtype).tiny)
    return jnp.minimum(adjust(part * lax.convert_element_type(total, w.dtype)[..., None], total, most), most)


@struct.dataclass
class LargestRemainders:
    """Shares of the total by weight, capped, summing to it exactly: `exact_alloc`."""

    def __call__(self, w: Float[Array, "*b l"], total: Int32[Array, "*b"], most: Slots) -> Slots:
        return exact_alloc(w, total, jnp.zeros_like(most), most)


@struct.dataclass
class ClipAndSpread:
    """Shares of the total by weight, truncated, clipped, and twice spread evenly: the arithmetic of CAKE's release, `adjust`.

    Capped once more at the end, so that it may sum to less than the total. In float64.
    """

    def __call__(self, w: Float[Array, "*b l"], total: Int32[Array, "*b"], most: Slots) -> Slots:
        with jax.enable_x64(True):
            return lax.convert_element_type(_shared(lax.convert_element_type(w, jnp.float64), total, most), jnp.int32)
