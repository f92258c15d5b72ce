"""Short prompts keep everything, long ones what another allocator gives them."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Int32, PyTree

from kvjax.allocate.uniform import Uniform, held
from kvjax.evidence import Evidence, Need
from kvjax.protocols import Decoder
from kvjax.ranges import Count
from kvjax.stage import Allocator
from kvjax.types import Layer
from kvjax.view import LayerView, Ranking


@struct.dataclass
class ShortRowsWhole(Allocator):
    """b_lh = n for a prompt of n <= longest tokens, else `allocate`'s.

    Args:
        longest: tokens of the longest prompt that is kept whole.   allocate: shares out the slots of longer ones.
    """

    exact: ClassVar[bool] = False
    longest: Count = 0
    allocate: Allocator = Uniform()

    @property
    def by_layer(self) -> bool:
        """As the other allocator: a prompt's length is known beforehand."""
        return self.allocate.by_layer

    @property
    def needs(self) -> frozenset[Need]:
        return self.allocate.needs

    def at(self, layer: Layer) -> "ShortRowsWhole":
        return self.replace(allocate=self.allocate.at(layer))

    def check(self, model: Decoder, length: int, mean_budget: int) -> None:
        self.allocate.check(model, length, mean_budget)

    def measure(self, view: LayerView, evidence: Evidence) -> PyTree:
        return self.allocate.measure(view, evidence)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        n = held(ranking)
        return jnp.where(n <= self.longest, n, self.allocate(ranking, mean_budget))
