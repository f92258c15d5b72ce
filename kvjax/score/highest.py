"""Slots by the hardest look any query has given them."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence import AttentionStatistics, Evidence, Need
from kvjax.evidence.reduce import Max, Reduction
from kvjax.stage import Scorer
from kvjax.view import LayerView


@struct.dataclass
class HighestRow(Scorer):
    """u[j] = max over queries and the query heads of a KV head of A[t, j].

    Args:
        rows: how rows are reduced: Max(), or OverPrompt(Max()), of each row's softmax over the prompt's keys alone.
    """

    rows: Reduction = Max()

    @property
    def need(self) -> AttentionStatistics:
        return AttentionStatistics(self.rows)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.need})

    def init(self, shape: tuple[int, int, int]) -> Float32[Array, "b h n"]:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h n"]:
        return jnp.maximum(view.state, evidence.of(self.need).max(2))

    def score(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h n"]:
        return view.state
