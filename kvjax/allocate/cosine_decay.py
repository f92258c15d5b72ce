"""Contexts that shrink from layer to layer along a cosine (PyramidInfer)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jax import lax
from jaxtyping import Array, Float32, Int32

from kvjax.budget import whole_share
from kvjax.evidence.late_rows import recent_tokens
from kvjax.ranges import Count, Share, Size
from kvjax.select.group_shares import cosine_ratios
from kvjax.stage import Allocator
from kvjax.types import Number
from kvjax.view import Ranking


def contexts(context: Int32[Array, " b"], ratios: Float32[Array, " l"], least: Number) -> Int32[Array, "l b"]:
    """c_l = int(c_{l-1} r_l), or c_{l-1} where r_l = 1 or it would be no more than m = min(least, c)."""
    m = jnp.minimum(least, context)

    def after(c, r):
        cut = whole_share(c, r)
        c = jnp.where((r < 1) & (cut > m), cut, c)
        return c, c

    return lax.scan(after, context, ratios)[1]


@struct.dataclass
class CosineDecay(Allocator):
    """The recent window and a context that shrinks by `cosine_ratios` at every `interval`-th layer; ratios compound.

    Args:
        p: the ratio the cosine falls to.   share: the last 1 + int(n share) tokens are recent.
        least: tokens of the context from which on it is not cut.   interval: layers between two cuts.

    The policy's budget is not read. Source: PyramidInfer, arXiv 2405.12532, section 3.
    """

    exact: ClassVar[bool] = False
    by_layer: ClassVar[bool] = True
    given: ClassVar[bool] = True
    p: Share = 0.9
    share: Share = 0.2
    least: Count = 64
    interval: Size = struct.field(pytree_node=False, default=1)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        del mean_budget
        prompt = jnp.where(ranking.valid, ranking.pos, -1).max((0, 2, 3)) + 1  # the last token never leaves
        recent = jnp.minimum(recent_tokens(prompt, self.share), prompt)
        turn = jnp.arange(ranking.layers) % self.interval == 0
        ratios = jnp.where(turn, cosine_ratios(ranking.layers, self.p), 1.0)
        budget = recent + contexts(prompt - recent, ratios, self.least)
        return jnp.broadcast_to(ranking.own(budget)[..., None], ranking.valid.shape[:3])
