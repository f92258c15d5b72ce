"""The prompt cut once, decoded tokens a group at a time (PyramidInfer)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.budget import whole_share
from kvjax.evidence.late_rows import recent_tokens
from kvjax.ranges import Count, NonNegative, Share, Size
from kvjax.rank_keys import rank_within
from kvjax.score.late_attention import Groups
from kvjax.stage import Selector
from kvjax.types import Mask, Number
from kvjax.view import LayerView, Ranking


def cosine_ratios(layers: int, p: Number) -> Float32[Array, " l"]:
    """(1 - p) (cos(π l / L) + 1) / 2 + p."""
    l = jnp.arange(layers, dtype=jnp.float32)  # noqa: E741
    return (1 - p) * (jnp.cos(jnp.pi * l / layers) + 1) / 2 + p


@struct.dataclass
class GroupShares(Selector):
    """Of the prompt the budget, of every complete group of decoded tokens max(int(factor · every · r_l), 1); all others stay.

    Groups are the scorer's second ranking (`LateAttention`). What is held grows: use it with `Every(1, grows=True)`. A group that
    has been cut holds no more than its share and stays as it is.

    Args:
        sinks: first tokens of the prompt that stay.   share: its last 1 + int(n share) tokens stay.
        every: tokens of a group.   factor, p: r_l falls to p as in `CosineDecay`.
        leave: whether tokens of the prompt that a layer drops are gone from the layers that follow.
    """

    exact: ClassVar[bool] = False
    reads_second: ClassVar[type | None] = Groups
    unbounded: ClassVar[bool] = True
    sinks: Count = 4
    share: Share = 0.2
    every: Size = struct.field(pytree_node=False, default=16)
    factor: NonNegative = 0.9
    p: Share = 0.1
    leave: bool = struct.field(pytree_node=False, default=True)

    @property
    def leaves(self) -> bool:
        return self.leave

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        first = view.pos < self.sinks
        if view.since is not None:
            return view.valid & first
        oldest = view.length - recent_tokens(view.length, self.share)
        return view.valid & (first | (view.pos >= oldest[:, None, None]))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        groups, ratios = ranking.second, cosine_ratios(ranking.layers, self.p)
        most = whole_share(self.factor * self.every, ratios)
        most = ranking.own(jnp.maximum(most, 1))[:, None, None, None]
        most = jnp.where(groups.index == 0, budget[..., None], most)
        return ranking.valid & (~groups.complete | (rank_within(groups.index, ranking) < most))
