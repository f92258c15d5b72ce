"""Layers in three groups by a number each, the last group cut to little (SqueezeAttention)."""

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct
from jax import lax
from jaxtyping import Array, Bool, Float, Float32, Int32

from kvjax.allocate.exact import exact_alloc
from kvjax.allocate.uniform import held
from kvjax.budget import whole_share
from kvjax.evidence import Evidence, Need
from kvjax.evidence.residual_cosine import ResidualCosine
from kvjax.order import places
from kvjax.ranges import Share
from kvjax.stage import Allocator
from kvjax.view import LayerView, Ranking


def highest_of_three(c: Float[Array, "b l"]) -> Bool[Array, "b l"]:
    """The layers of the highest of three groups: the two cuts of the sorted numbers of least squared error, ties to the lower cut.

    Nothing where there are fewer than three distinct numbers.
    """
    layers = c.shape[-1]
    if layers < 3:
        return jnp.zeros(c.shape, bool)
    first, second = np.array([(i, j) for i in range(1, layers - 1) for j in range(i + 1, layers)], np.int32).T
    order = jnp.argsort(c, -1, stable=True)
    x = jnp.take_along_axis(c, order, -1)
    s1, s2 = (jnp.pad(jnp.cumsum(y, -1), ((0, 0), (1, 0))) for y in (x, x * x))

    def error(a, b):
        return s2[:, b] - s2[:, a] - (s1[:, b] - s1[:, a]) ** 2 / (b - a)

    total = error(np.zeros_like(first), first) + error(first, second) + error(second, np.full_like(first, layers))
    cut = jnp.asarray(second)[jnp.argsort(total, -1, stable=True)[:, 0]]
    highest = places(order) >= cut[:, None]
    distinct = 1 + (x[:, 1:] != x[:, :-1]).sum(-1, dtype=jnp.int32)
    return highest & (distinct >= 3)[:, None]


def two_levels(
    low: Bool[Array, "b l"], mean: Int32[Array, " b"], least: Int32[Array, " b"], n: Int32[Array, "b l"]
) -> Int32[Array, "b l"]:
    """`least` for the layers that are low, (L·mean - |low| least) / (L - |low|) for the others.

    What rounding loses goes to the lowest of them. Nothing above n: what a layer cannot hold goes to the others.
    """
    layers, few = low.shape[-1], low.sum(-1)
    rest, left = jnp.divmod(layers * mean - few * least, jnp.maximum(layers - few, 1))
    others = jnp.cumsum(~low, -1) - 1
    wish = jnp.where(low, least[:, None], rest[:, None] + (others < left[:, None]))
    with jax.enable_x64(True):
        return exact_alloc(lax.convert_element_type(wish, jnp.float64), layers * mean, jnp.zeros_like(n), n)


@struct.dataclass
class ThreeGroups(Allocator):
    """floor(least · b) slots for the layers whose attention turns the residual stream least, the rest for the others.

    c_l = mean over the prompt's tokens of cos(x, x + Attn(x)); three groups by exact one-dimensional 3-means, the group of the
    highest c gives slots away.

    Args:
        least: share of the mean that the layers of the last group keep.

    Source: SqueezeAttention, arXiv 2404.04793, algorithm 1. Differs: exact groups, where the paper runs k-means from a seed; totals
    are exact: slots that the others cannot hold of a prompt go to the last group, beyond its share.
    """

    least: Share = 0.35

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ResidualCosine()})

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, " b"]:
        return evidence.of(ResidualCosine()).mean()

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        least = whole_share(mean_budget, self.least)
        with jax.enable_x64(True):
            low = highest_of_three(lax.convert_element_type(ranking.measured, jnp.float64).T)
        budget = two_levels(low, mean_budget, jnp.maximum(least, 1), n.max(-1).T)
        return jnp.minimum(budget.T[..., None], n)
