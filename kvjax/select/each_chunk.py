"""The best of every chunk of consecutive tokens by itself (FINCH, KeyDiff in chunks)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.ranges import Share, Size
from kvjax.rank_keys import rank_within
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class EachChunk(Selector):
    """Of every chunk of `size` consecutive slots the best max(1, int(length · share)) stay, a trailing one's share its own.

    The budget is not asked: rounding chunk by chunk can leave fewer slots than the same share of all. Slots are in position order.

    Args:
        size: slots of a chunk.   share: part of each that is kept.   protects: the selector whose protected tokens lead.
    """

    exact: ClassVar[bool] = False
    unbounded: ClassVar[bool] = True
    size: Size = struct.field(pytree_node=False, default=1024)
    share: Share = 0.5
    protects: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.protects.protected(view, budget)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        del budget
        slot, n = jnp.arange(ranking.pos.shape[-1], dtype=jnp.int32), ranking.valid.sum(-1, keepdims=True)
        chunk = jnp.broadcast_to(slot // self.size, ranking.pos.shape)
        length = jnp.clip(n - chunk * self.size, 0, self.size)
        most = jnp.maximum(jnp.floor(length * self.share * (1 + 1e-6)), 1)
        return ranking.valid & (rank_within(chunk, ranking) < most)
