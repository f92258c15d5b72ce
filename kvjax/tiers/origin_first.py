"""Full precision, few bits, or gone: cut when the budget overflows (ARKV)."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.encode.tier_rule import EVICTED, TierRule, TierView
from kvjax.order import places
from kvjax.ranges import Size
from kvjax.score.pool import AvgPool
from kvjax.tiers.best import best
from kvjax.types import Function, Mask, Number
from kvjax.view import Ranking


def pooled(scores: Float32[Array, "b h n"], pos: Int32[Array, "b h n"], past: Mask, pool: Function) -> Float32[Array, "b h n"]:
    """Scores smoothed over the past slots in the order of the text, those of other slots left out; in the order given."""
    order = jnp.argsort(jnp.where(past, pos, jnp.iinfo(jnp.int32).max), -1)
    smooth = pool(jnp.take_along_axis(jnp.where(past, scores, 0.0), order, -1))
    return jnp.take_along_axis(smooth, places(order), -1)


@struct.dataclass
class OriginFirst(TierRule):
    """When a head holds more than C slots: of those before the last W a quarter goes, and of the rest all but some are coded.

    keep = floor(3/4 past) by score, of which clip(origin - W, 0, keep) stay as they are; the last W do, too.

    Args:
        budget: C.   window: W.   pool: smoothing of the scores over the text.

    What has been coded stays coded, with the same numbers: the release stores some of them in full precision again.
    Source: ARKV, arXiv 2603.08727, and its release, which takes W from the origin slots a second time.
    """

    moves: ClassVar[bool] = True
    evicts: ClassVar[bool] = True
    watched: ClassVar[int] = 2
    budget: Number = 512
    window: Size = struct.field(pytree_node=False, default=32)
    pool: Function = AvgPool(5)

    def of_prompt(self, ranking: Ranking, length: Int32[Array, " b"]) -> Int32[Array, "l b h n"]:
        del length
        return jnp.zeros(ranking.valid.shape, jnp.int32)

    def due(self, steps: Int32[Array, " b"], held: tuple[Int32[Array, "b h"], ...]) -> Bool[Array, " b"]:
        del steps
        return (sum(held) > self.budget).any(-1)

    def after_step(
        self, tiers: tuple[TierView, ...], held: tuple[Int32[Array, "b h"], ...], length: Int32[Array, " b"],
        budget: Int32[Array, "b h"],
    ) -> tuple[Int32[Array, "b h n"], ...]:  # fmt: skip
        del held
        scores, pos, valid = (jnp.concatenate([getattr(tier, name) for tier in tiers], -1) for name in TierView._fields)
        past = valid & (pos < (length - self.window)[:, None, None])
        keep = past.sum(-1, dtype=jnp.int32) * 3 // 4
        worth = pooled(scores, pos, past, self.pool)[None]
        stays = best(worth, past[None], keep[None])[0]
        origin = best(worth, past[None], jnp.clip(budget - self.window, 0, keep)[None])[0] | (valid & ~past)
        first, second = jnp.split(jnp.where(origin, 0, jnp.where(stays, 1, EVICTED)), 2, -1)
        return first, jnp.maximum(second, jnp.where(second == 0, 1, second))

    def room(
        self, held: Sequence[Int32[np.ndarray, "l b h"]], new: Int32[np.ndarray, "l b h"], budget: Int32[np.ndarray, "l b h"]
    ) -> list[Int32[np.ndarray, "l b h"]]:
        del budget
        most = np.minimum(held[0] + held[1] + new, np.maximum(int(self.budget), held[0] + held[1]) + 1)
        return [most, most]
