"""Slots by each head's own rule (FastGen)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32, Int32

from kvjax.evidence import Evidence, Need
from kvjax.head_rules import RuleList
from kvjax.stage import Allocator
from kvjax.view import LayerView, Ranking


@struct.dataclass
class RuleSlots(Allocator):
    """b_lh = what the rule of head (l, h) asks for, at least what it keeps of the prompt; the policy's budget is not read.

    Source: FastGen, arXiv 2310.01801, section 3.
    """

    exact: ClassVar[bool] = False
    by_layer: ClassVar[bool] = True
    given: ClassVar[bool] = True
    rules: RuleList

    @property
    def needs(self) -> frozenset[Need]:
        return self.rules.needs

    def measure(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h"]:
        return self.rules.chosen(view, evidence)[1].budget.astype(jnp.float32)

    def __call__(self, ranking: Ranking, mean_budget: Int32[Array, " b"]) -> Int32[Array, "l b h"]:
        del mean_budget
        return ranking.measured.astype(jnp.int32)
