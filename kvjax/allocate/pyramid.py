"""Budgets that fall linearly with depth (PyramidKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.allocate.uniform import held
from kvjax.order import places
from kvjax.ranges import NonNegative, Size, Whole
from kvjax.stage import Allocator
from kvjax.types import Number
from kvjax.view import Ranking


def pyramid(base: Int32[Array, " b"], room: Int32[Array, " b"], *, layers: int, beta: int) -> Int32[Array, "l b"]:
    """Integers falling linearly from max to min over the layers, summing exactly to layers · base.

    min = base // beta, max = 2 base - min; if max > room: max = room, min = 2 base - room. Exact linear values are rounded down
    and the remainder goes, one each, to the largest fractional parts (ties to the lower layer). Uniform when room < 2 base - room.
    """
    low = base // beta
    high = jnp.minimum(2 * base - low, room)
    low = jnp.maximum(2 * base - high, 0)
    high = 2 * base - low
    steps = layers - 1
    if steps == 0:
        return base[None]
    floor, part = jnp.divmod(high * steps - jnp.arange(layers)[:, None] * (high - low), steps)
    left = layers * base - floor.sum(0)
    place = places(jnp.argsort(-part, axis=0, stable=True), axis=0)
    return jnp.where((high >= low)[None], floor + (place < left), base)


@struct.dataclass
class Pyramid(Allocator):
    """PyramidKV's linear budgets with exact totals: b_l = window + pyramid(b - window).

    Args:
        beta: steepness, an integer; the last layer gets about 1/beta of the mean.
        window: protected slots every layer gets on top.

    Differs from the release: it floors the step, so its total exceeds layers · b by up to 5%; here the total is exact.
    Prompts shorter than twice the mean past budget fall back to uniform budgets, as in the release.
    Source: PyramidKV, arXiv 2406.02069, section 4.2.
    """

    by_layer: ClassVar[bool] = True
    beta: Size = struct.field(pytree_node=False, default=20)
    window: Whole = struct.field(pytree_node=False, default=32)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        room = n[0].max(-1) - self.window
        base = jnp.maximum(mean_budget - self.window, 0)
        falling = self.window + ranking.own(pyramid(base, room, layers=ranking.layers, beta=self.beta))
        uniform = (mean_budget <= self.window) | (room + self.window < 2 * base)
        return jnp.minimum(jnp.where(uniform, mean_budget, falling)[..., None], n)


def pyramid_rounded(
    b: Float32[Array, " b"], n: Int32[Array, "l b h"], *, beta: Number, window: int
) -> Int32[Array, "l b h"]:
    """round(max - l (max - min)/(L - 1)) within 1 .. n, with min = b / beta and max = 2b - min clipped at n - window.

    Uniform, round(b), unless n >= max >= min >= window. Halves round to even.
    """
    layers, longest = n.shape[0], n[0].max(-1).astype(jnp.float32)
    high = jnp.minimum(2 * b - b / beta, longest - window)
    low = 2 * b - high
    slope = (high - low) / max(layers - 1, 1)
    falling = high - jnp.arange(layers)[:, None] * slope
    pyramidal = (longest >= high) & (high >= low) & (low >= window)
    return jnp.clip(jnp.round(jnp.where(pyramidal, falling, b)).astype(jnp.int32)[..., None], 1, n)


@struct.dataclass
class PyramidRounded(Allocator):
    """The pyramid over the whole budget, each layer rounded on its own: the form of a widely used toolkit.

    See `pyramid_rounded`. The total is exact only up to the rounding; for parity with published numbers.
    """

    by_layer: ClassVar[bool] = True
    beta: NonNegative = 20.0
    window: Whole = struct.field(pytree_node=False, default=32)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        every = jnp.broadcast_to(n[:1], (ranking.layers, *n.shape[1:]))  # a prompt fills all layers alike
        return ranking.own(pyramid_rounded(mean_budget.astype(jnp.float32), every, beta=self.beta, window=self.window))
