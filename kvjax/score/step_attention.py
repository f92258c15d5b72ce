"""The attention of the queries just seen, without what came before (LoCoCo)."""

from flax import struct

from kvjax.evidence import ColumnSums, Evidence, Need
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class StepAttention(Scorer):
    """u[j] = mean_g A[t, j] of the step's query; after a prompt, the sum over its queries. Nothing is kept from step to step."""

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums()})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del view
        return evidence.column_sums()
