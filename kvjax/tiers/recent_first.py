"""The newest slots in the first tier, the prompt's others in the second, for good."""

from collections.abc import Sequence

import jax.numpy as jnp
import numpy as np
from flax import struct
from jaxtyping import Array, Int32

from kvjax.encode.tier_rule import TierRule
from kvjax.ranges import Whole
from kvjax.view import Ranking


@struct.dataclass
class RecentFirst(TierRule):
    """The last `recent` slots of the prompt and all that follows are in the first tier, the prompt's others in the second.

    Args:
        recent: r.
    """

    recent: Whole = struct.field(pytree_node=False, default=32)

    def of_prompt(self, ranking: Ranking, length: Int32[Array, " b"]) -> Int32[Array, "l b h n"]:
        del length
        behind = ranking.valid.sum(-1, keepdims=True) - jnp.cumsum(ranking.valid, -1)
        return (behind >= self.recent).astype(jnp.int32)

    def room(
        self, held: Sequence[Int32[np.ndarray, "l b h"]], new: Int32[np.ndarray, "l b h"], budget: Int32[np.ndarray, "l b h"]
    ) -> list[Int32[np.ndarray, "l b h"]]:
        del budget
        return [held[0] + new, held[1]]
