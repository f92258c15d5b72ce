"""Attention received so far, older rows weighing less (ZeroMerge)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import AttentionStatistics, Evidence, Need
from kvjax.evidence.fading_sum import FadingSum, faded
from kvjax.ranges import StaticShare
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class FadingAttention(Scorer):
    """u[j] = Σ_t shrink^(rows after t) Σ_g A[t, j], over the prompt's queries and every decoded one since.

    Source: ZeroMerge, arXiv 2503.10714, section 3.
    """

    shrink: StaticShare = struct.field(pytree_node=False, default=0.98)

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({AttentionStatistics(FadingSum(self.shrink))})

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        new = evidence.of(AttentionStatistics(FadingSum(self.shrink)))
        return faded(view.state, new.rows, self.shrink) + new.total.sum(2)

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state
