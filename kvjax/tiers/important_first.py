"""A share of the tokens in the first tier, by importance and recency; whatever leaves it is demoted (MiKV)."""

from collections.abc import Sequence
from typing import ClassVar

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.budget import whole_share
from kvjax.encode.tier_rule import TierRule, TierView
from kvjax.ranges import Share
from kvjax.select import TopK
from kvjax.types import Number
from kvjax.view import LayerView, Ranking


def important(held: Int32[Array, "*a"], share: Number) -> Int32[Array, "*a"]:
    """n_hi = floor(r · n)."""
    return whole_share(held, share)


@struct.dataclass
class ImportantFirst(TierRule):
    """The first tier holds floor(r n) of a head's n slots: the newest of them, and those of highest score; the second the others.

    Args:
        share: r, of the slots.   recent_share: of those, the newest.

    After every step what is too many goes to the second tier; nothing comes back.
    Source: MiKV, arXiv 2402.18096, section 4.1.
    """

    moves: ClassVar[bool] = True
    share: Share = 0.2
    recent_share: Share = 0.5

    @property
    def most(self) -> int | None:
        return 1  # one more token makes at most one too many

    def _first(self, ranking: Ranking, held: Int32[Array, "l b h"], length: Int32[Array, " b"]) -> Bool[Array, "l b h n"]:
        count, select = important(held, self.share), TopK(recent_share=self.recent_share)

        def view(i):
            return LayerView(k=None, v=None, pos=ranking.pos[i], valid=ranking.valid[i], length=length)

        protected = jnp.stack([select.protected(view(i), count[i]) for i in range(count.shape[0])])
        return select(ranking.replace(protected=protected), count) & (count > 0)[..., None]

    def of_prompt(self, ranking: Ranking, length: Int32[Array, " b"]) -> Int32[Array, "l b h n"]:
        return jnp.where(self._first(ranking, ranking.valid.sum(-1), length), 0, 1)

    def due(self, steps: Int32[Array, " b"], held: tuple[Int32[Array, "b h"], ...]) -> Bool[Array, " b"]:
        del steps
        return (held[0] > important(sum(held), self.share)).any(-1)

    def after_step(
        self, tiers: tuple[TierView, ...], held: tuple[Int32[Array, "b h"], ...], length: Int32[Array, " b"],
        budget: Int32[Array, "b h"],
    ) -> tuple[Int32[Array, "b h n"], ...]:  # fmt: skip
        del budget
        tier = tiers[0]
        ranking = Ranking(scores=tier.scores[None], protected=tier.valid[None], valid=tier.valid[None], pos=tier.pos[None])
        return (jnp.where(self._first(ranking, sum(held)[None], length)[0], 0, 1),)

    def room(
        self, held: Sequence[Int32[np.ndarray, "l b h"]], new: Int32[np.ndarray, "l b h"], budget: Int32[np.ndarray, "l b h"]
    ) -> list[Int32[np.ndarray, "l b h"]]:
        del budget
        total = held[0] + held[1] + new
        first = np.asarray(important(jnp.asarray(total), self.share))
        return [first + 1, total - first + 1]
