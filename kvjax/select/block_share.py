"""A share of every block of tokens, once the next block is complete (LagKV while decoding)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.ranges import Share, Size, Whole
from kvjax.rank_keys import rank_within
from kvjax.score.lag import last_scored
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class BlockShare(Selector):
    """Of every complete block of `lag` tokens that a complete one follows, the int(share · lag) best stay, and all others.

    What is held grows with the text, so the budget is not asked: use it with `Every(1, grows=True)`. A block that has been cut
    holds no more than its share and stays as it is. Equal scores: the lower position stays. Slots are in position order.

    Args:
        sinks: first tokens, in no block.   lag: tokens of a block.   share: part of a block that is kept.

    Source: LagKV, arXiv 2504.04704, algorithm 1.
    """

    exact: ClassVar[bool] = False
    unbounded: ClassVar[bool] = True
    sinks: Whole = struct.field(pytree_node=False, default=16)
    lag: Size = struct.field(pytree_node=False, default=1024)
    share: Share = 0.5

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        del budget
        return view.valid & ~last_scored(view.pos, view.length[:, None, None], sinks=self.sinks, lag=self.lag)

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        del budget
        most = jnp.floor(self.share * self.lag * (1 + 1e-6) + 1e-6)
        rank = rank_within((ranking.pos - self.sinks) // self.lag, ranking)
        return ranking.valid & (ranking.protected | (rank < most))
