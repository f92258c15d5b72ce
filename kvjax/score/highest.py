"""Slots by the hardest look any query has given them."""

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, Float32

from kvjax.evidence import AttentionStatistics, Evidence, Need
from kvjax.evidence.reduce import Max
from kvjax.stage import Scorer
from kvjax.view import LayerView

_ROWS = AttentionStatistics(Max())


@struct.dataclass
class HighestRow(Scorer):
    """u[j] = max over queries and the query heads of a KV head of A[t, j]."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({_ROWS})

    def init(self, shape: tuple[int, int, int]) -> Float32[Array, "b h n"]:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h n"]:
        return jnp.maximum(view.state, evidence.of(_ROWS).max(2))

    def score(self, view: LayerView, evidence: Evidence) -> Float32[Array, "b h n"]:
        return view.state
