"""So many slots, whatever was allocated."""

from typing import ClassVar

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

    The count may be more than the budget: while decoding use it with `Every(k, grows=True)`.

    Args:
        count: slots.   rule: the selector.
    """

    exact: ClassVar[bool] = False
    unbounded: ClassVar[bool] = True
    count: Count = 512
    rule: Selector = TopK()

    def protected(self, view: LayerView, budget: Int32[Array, "b h"]) -> Mask:
        return self.rule.protected(view, jnp.full_like(budget, self.count))

    def __call__(self, ranking: Ranking, budget: Int32[Array, "l b h"]) -> Bool[Array, "l b h n"]:
        return self.rule(ranking, jnp.full_like(budget, self.count))
