"""So many slots, whatever was allocated."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Bool, Int32

from kvjax.ranges import Count
from kvjax.select.topk import TopK
from kvjax.stage import Selector
from kvjax.types import Mask
from kvjax.view import LayerView, Ranking


@struct.dataclass
class Fixed(Selector):
    """Every head keeps `count` slots as `rule` chooses them: for allocators whose numbers are not what is held.

    Args:
        count: slots.   rule: the selector.
    """

    exact = False
    count: Count = 512
    rule: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.rule.protected(view, jnp.full_like(budget, self.count))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        return self.rule(ranking, jnp.full_like(budget, self.count))
