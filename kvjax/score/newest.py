"""What the tokens just read attend to, and nothing before them (LoCoCo)."""

from flax import struct

from kvjax.evidence import ColumnSums, Evidence, Need
from kvjax.stage import Scorer
from kvjax.types import Scores
from kvjax.view import LayerView


@struct.dataclass
class NewestAttention(Scorer):
    """u[j] = Σ_t mean_g A[t, j] over the tokens just read: all of a prompt, then the step's alone.

    Source: LoCoCo, arXiv 2406.05317, as released; group mean under grouped queries (the release serves none).
    """

    @property
    def needs(self) -> frozenset[Need]:
        return frozenset({ColumnSums()})

    def score(self, view: LayerView, evidence: Evidence) -> Scores:
        del view
        return evidence.column_sums()
