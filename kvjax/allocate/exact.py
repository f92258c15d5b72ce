"""Integer budgets that sum exactly to a total, in float64 on the device."""

from functools import partial

import jax
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Int32, Integer

from kvjax.order import places

#: Parts this close count as equal: what is a tie in exact arithmetic stays one, whatever the last bits say.
_EQUAL = 1e-9


def scaled(
    w: Float[Array, "*b n"], total: Float[Array, "*b"], lo: Float[Array, "*b n"], hi: Float[Array, "*b n"]
) -> Float[Array, "*b n"]:
    """x = clip(lambda w, lo, hi) with the lambda where Σ x = total: 200 halvings, as Σ x never falls with lambda.

    Fixing clamped entries one kind after the other and sharing out the rest anew can end with a remainder nobody can take.
    """

    def shares(scale):
        return jnp.clip(scale[..., None] * w, lo, hi)

    def halve(_, ends):
        low, high = ends
        middle = (low + high) / 2
        short = shares(middle).sum(-1) < total
        return jnp.where(short, middle, low), jnp.where(short, high, middle)

    ends = jnp.zeros_like(total), (hi / w).max(-1) + 1
    return shares(lax.fori_loop(0, 200, halve, ends)[1])


def rounded(x: Float[Array, "*b n"], total: Float[Array, "*b"], hi: Float[Array, "*b n"]) -> Float[Array, "*b n"]:
    """Floors of x, then one unit each to the largest fractional parts below hi until the sum is total; ties to the lower index."""
    y = jnp.floor(x + _EQUAL)
    part = jnp.round((x - y) / _EQUAL)

    def give(y):
        takers = y < hi
        rank = places(jnp.argsort(jnp.where(takers, -part, jnp.inf), axis=-1, stable=True))
        return y + (takers & (rank < (total - y.sum(-1))[..., None]))

    return lax.while_loop(lambda y: ((y.sum(-1) < total) & (y < hi).any(-1)).any(), give, y)


@partial(jax.jit, inline=True)
def _allocate(w, total, lo, hi):
    """All in float64; bounds and total hold integers."""
    peak = w.max(-1, keepdims=True)
    w = jnp.where(peak > 0, jnp.maximum(w / jnp.where(peak > 0, peak, 1.0), 1e-12), 1.0)
    least, most = lo.sum(-1), hi.sum(-1)
    inside = jnp.clip(total, least, most)
    y = rounded(scaled(w, inside, lo, hi), inside, hi)
    y = jnp.where((total >= most)[..., None], hi, y)
    return jnp.where((total <= least)[..., None], lo, y)


def exact_alloc(
    w: Float[Array, "*b n"], total: Integer[Array, "*b"], lo: Integer[Array, "*b n"], hi: Integer[Array, "*b n"]
) -> Int32[Array, "*b n"]:
    """Integers y with Σ y = total and lo <= y <= hi, as near as integers come to x = clip(lambda w, lo, hi) with Σ x = total.

    y = floor(x + 1e-9), and the units left over go to the largest fractional parts, ties to the lower index.

    Args:
        w: weights >= 0, floored at 1e-12 of the largest; all zero counts as all equal.
        total: integer sum of each row.   lo, hi: integer bounds, lo <= hi.

    A total of Σ lo or less gives lo and one of Σ hi or more gives hi: the caller answers for the difference. Runs in float64
    whatever the default precision, under jit and vmap too.
    Source: largest-remainder rounding; the papers that share out slots leave theirs unsaid or lose some.
    """
    with jax.enable_x64(True):
        def f64(x):
            return lax.convert_element_type(jnp.asarray(x), jnp.float64)

        w, lo, hi = jnp.broadcast_arrays(f64(w), f64(lo), f64(hi))
        y = _allocate(w, jnp.broadcast_to(f64(total), w.shape[:-1]), lo, hi)
        return lax.convert_element_type(y, jnp.int32)
