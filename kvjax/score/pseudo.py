"""Attention of pseudo queries at the positions to come as the score (DapQ)."""

from flax import struct

from kvjax.evidence import Evidence, Need
from kvjax.prefill.pseudo_queries import PseudoQueries
from kvjax.score.heads import GroupMean
from kvjax.stage import Scorer
from kvjax.types import Function, Scores
from kvjax.view import LayerView


@struct.dataclass
class PseudoAttention(Scorer):
    """u[j] = heads(Σ over the pseudo queries of p_j). The evidence is that of a second pass: `kvjax.second_pass(lm, pre, policy)`.

    Args:
        queries: the pseudo queries.   heads: reduction to KV heads.

    Source: DapQ, arXiv 2603.11564.
    """

    queries: PseudoQueries = PseudoQueries()
    heads: Function = GroupMean()

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({self.queries})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del view
        return self.heads(evidence.of(self.queries))
