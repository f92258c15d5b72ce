"""A second ranking: attention times the size of what a value adds to the layer's output (CriticalKV)."""

from typing import ClassVar

import jax.numpy as jnp
from flax import struct
from jaxtyping import Array, PyTree

from kvjax.evidence import Evidence, Need, ProjectedValueNorm
from kvjax.ranges import NonNegative
from kvjax.score.around import Around
from kvjax.score.window import WindowAttention
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class ValueWeighted(Around):
    """The scores u of another scorer, and beside them (u + ε) · mean_g ‖v W_o^(g)‖₁, for selectors of two stages.

    Args:
        score_of: the scorer; one that already multiplies by a value norm would count it twice.
        eps: ε, by which a token without attention can stay for its value.

    Source: CriticalKV, arXiv 2502.03805, algorithm 1. Differs: norms are averaged over the query heads of a KV head.
    """

    gives_second: ClassVar[type | None] = Array

    score_of: Scorer = WindowAttention()
    eps: NonNegative = 1e-4

    @property
    def needs(self) -> frozenset[Need]:
        return self.score_of.needs | {ProjectedValueNorm()}

    def init(self, shape: tuple[int, int, int]) -> tuple[PyTree, Scores]:
        return self.score_of.init(shape), jnp.zeros(shape, jnp.float32)

    def observe(self, view: LayerView, evidence: Evidence) -> tuple[PyTree, Scores]:
        inner, norm = view.state
        norm = evidence.of(ProjectedValueNorm()).placed(norm, view.pos)
        return self.score_of.observe(view.replace(state=inner), evidence), norm

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        return self.score_of.score(view.replace(state=view.state[0]), evidence)

    def second(self, view: LayerView, evidence: Evidence, scores: Scores) -> Scores:
        return (scores + self.eps) * view.state[1]
