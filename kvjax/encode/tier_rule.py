"""Which tier a slot is in: after the prompt, and what moves while decoding."""

from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from jaxtyping import Array, Bool, Float32, Int32

from kvjax.stage import Stage
from kvjax.types import Mask
from kvjax.view import Ranking


class TierView(NamedTuple):
    """One tier of a layer as a rule sees it: its slots in the order of its regions.

    Attributes:
        scores: what the policy's scorer gives them.   pos: their positions.   valid: which slots are in use.
    """

    scores: Float32[Array, "b h n"]
    pos: Int32[Array, "b h n"]
    valid: Mask


#: A tier that holds nothing: what goes there is evicted.
EVICTED = -1


class TierRule(Stage):
    """Which tier a slot is in.

    Attributes:
        moves: whether anything moves while decoding.
        evicts: whether slots leave the cache while decoding.
        watched: tiers that are scored and that slots may leave while decoding, the first ones.
        most: slots that may leave a region of a tier at once; None: all of them.
    """

    moves: ClassVar[bool] = False
    evicts: ClassVar[bool] = False
    watched: ClassVar[int] = 1

    @property
    def most(self) -> int | None:
        return None

    def comes(self, tier: int) -> int | None:
        """Slots that come to a tier at once while decoding, as many in every head; 1: each by itself, None: none do."""
        return 1 if self.moves and tier else None

    def of_prompt(self, ranking: Ranking, length: Int32[Array, " b"]) -> Int32[Array, "l b h n"]:
        """The tier of every slot kept of a prompt."""
        raise NotImplementedError(f"{type(self).__name__} must define of_prompt(ranking, length)")

    def due(self, steps: Int32[Array, " b"], held: tuple[Int32[Array, "b h"], ...]) -> Bool[Array, " b"]:
        """Rows whose slots move after a step; `steps` counts a row's tokens since the prompt, `held` each tier's slots."""
        raise NotImplementedError(f"{type(self).__name__} moves nothing while decoding")

    def after_step(
        self, tiers: tuple[TierView, ...], held: tuple[Int32[Array, "b h"], ...], length: Int32[Array, " b"],
        budget: Int32[Array, "b h"],
    ) -> tuple[Int32[Array, "b h n"], ...]:  # fmt: skip
        """For every watched tier where its slots are to be: their own tier, a later one, or EVICTED.

        `held` counts each tier's slots, `length` is the tokens of text so far, `budget` what was allocated to each head.
        """
        raise NotImplementedError(f"{type(self).__name__} moves nothing while decoding")

    def room(
        self, held: Sequence[Int32[np.ndarray, "l b h"]], new: Int32[np.ndarray, "l b h"], budget: Int32[np.ndarray, "l b h"]
    ) -> list[Int32[np.ndarray, "l b h"]]:
        """Slots that each tier needs for `new` more tokens."""
        raise NotImplementedError(f"{type(self).__name__} must define room(held, new, budget)")
