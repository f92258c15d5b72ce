"""Attention mass received so far as the score (H2O and its mean form)."""

import jax.numpy as jnp
from flax import struct

from kvjax.evidence import ColumnSums, Evidence, Need
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class AccumulatedAttention(Scorer):
    """u[j] = Σ_t mean_g A[t, j], over the prompt's queries and every decoded one since.

    A sum, not a mean: early keys are seen by more queries and win. Kept scores stay as they are.
    Source: H2O, arXiv 2306.14048, algorithm 1; group mean under grouped queries (the release breaks there).
    """

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums()})

    def init(self, shape: tuple[int, int, int]) -> Scores:
        return jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> Scores:
        return view.state + evidence.column_sums()

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del evidence
        return view.state


@struct.dataclass
class VisibleMeanAttention(AccumulatedAttention):
    """u[j] = Σ_t mean_g A[t, j] / (number of queries that could see j): the sum without its bias to early keys."""

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        queries = evidence.length[:, None, None] - view.pos
        return view.state / jnp.maximum(queries, 1)
