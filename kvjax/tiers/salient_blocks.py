"""Salient tokens and the others, in two tiers each for the prompt and for blocks of what follows (ZipCache)."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.encode.tier_rule import TierRule, TierView
from kvjax.ranges import Size, StaticShare
from kvjax.tiers.best import best
from kvjax.types import Number
from kvjax.view import Ranking


def others_of(n: Number, share: float) -> Number:
    """floor((1 - r) · n), with room for a share that is a rounded decimal."""
    return n * (1 - share) * (1 + 1e-6) // 1


@struct.dataclass
class SalientBlocks(TierRule):
    """Tiers: 0 new tokens, 1 the prompt's salient ones, 2 its others, 3 and 4 those of the blocks that followed.

    Args:
        share: r, of the prompt's slots, and of every block, by score; of n slots n - floor((1 - r) n) are salient.
        interval: tokens of a block: when so many are in tier 0, they all leave it.

    Source: ZipCache, arXiv 2405.14256, section 4.3 and algorithm 3; counts as in its release.
    """

    moves: ClassVar[bool] = True
    share: StaticShare = struct.field(pytree_node=False, default=0.6)
    interval: Size = struct.field(pytree_node=False, default=100)

    @property
    def most(self) -> int:
        return self.interval

    def comes(self, tier: int) -> int | None:
        return {3: self.salient, 4: self.interval - self.salient}.get(tier)

    @property
    def salient(self) -> int:
        """Salient tokens of a block."""
        return self.interval - int(others_of(self.interval, self.share))

    def of_prompt(self, ranking: Ranking, length: Int32[Array, " b"]) -> Int32[Array, "l b h n"]:
        del length
        n = ranking.valid.sum(-1)
        count = n - others_of(n, self.share).astype(jnp.int32)
        return jnp.where(best(ranking.scores, ranking.valid, count), 1, 2)

    def due(self, steps: Int32[Array, " b"], held: tuple[Int32[Array, "b h"], ...]) -> Bool[Array, " b"]:
        del steps
        return (held[0] >= self.interval).all(-1)

    def after_step(
        self, tiers: tuple[TierView, ...], held: tuple[Int32[Array, "b h"], ...], length: Int32[Array, " b"],
        budget: Int32[Array, "b h"],
    ) -> tuple[Int32[Array, "b h n"], ...]:  # fmt: skip
        del held, length
        count = jnp.full((1, *budget.shape), self.salient, jnp.int32)
        return (jnp.where(best(tiers[0].scores[None], tiers[0].valid[None], count)[0], 3, 4),)

    def room(
        self, held: Sequence[Int32[np.ndarray, "l b h"]], new: Int32[np.ndarray, "l b h"], budget: Int32[np.ndarray, "l b h"]
    ) -> list[Int32[np.ndarray, "l b h"]]:
        del budget
        total = held[0] + new
        blocks = total // self.interval
        salient, rest = blocks * self.salient, blocks * (self.interval - self.salient)
        return [np.minimum(total, self.interval), held[1], held[2], held[3] + salient, held[4] + rest]
