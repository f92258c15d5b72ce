"""Budgets by scores among which some slots are forced in (DefensiveKV)."""

from typing import ClassVar

from flax import struct
from jaxtyping import Array, Int32

from kvjax.allocate.adaptive import Adaptive
from kvjax.ranges import Count
from kvjax.select.forced import raised
from kvjax.stage import Allocator
from kvjax.view import Ranking


@struct.dataclass
class ForcedFirst(Allocator):
    """Another allocator's budgets, the slots that `ForcedTopK` forces in above every score.

    Args:
        allocate: Adaptive(0.0), layer by layer, or AcrossModel().   window: slots that are protected beside them.
    """

    reads_second: ClassVar[type | None] = Array
    allocate: Allocator = Adaptive(0.0)
    window: Count = 32

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        return self.allocate(raised(ranking, mean_budget, self.window), mean_budget)
