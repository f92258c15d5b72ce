"""Evidence: what attention leaves behind for stages to read, and what each piece costs to record."""

from kvjax.evidence.attention_statistics import AttentionStatistics
from kvjax.evidence.chunk_attention import ChunkAttention
from kvjax.evidence.column_sums import ColumnSums
from kvjax.evidence.gate_attention import GateAttention
from kvjax.evidence.gate_values import GateValues
from kvjax.evidence.late_rows import LateRows
from kvjax.evidence.local_mass import LocalMass
from kvjax.evidence.low_rows import LowRows
from kvjax.evidence.near_sum import NearSum
from kvjax.evidence.need import Block, Need, Shape, Tokens
from kvjax.evidence.numbers import ProjectedValueNorm
from kvjax.evidence.of_group import OfGroupMax, OfGroupMean
from kvjax.evidence.of_output import OfOutput, OutputBlock, of_output
from kvjax.evidence.over_prompt import OverPrompt
from kvjax.evidence.per_token import HiddenStates, PerToken, RawKeys
from kvjax.evidence.probed import Probed
from kvjax.evidence.query_max import QueryMax
from kvjax.evidence.query_moments import Moments, QueryMoments, merge_moments
from kvjax.evidence.query_spread import QuerySpread
from kvjax.evidence.record import (
    STANDARD,
    Evidence,
    concatenate,
    empty,
    missing,
    folded,
    observe,
    of_layer,
    of_model,
    ordered,
    reach,
    restrict,
    union,
)
from kvjax.evidence.relative_output import ProjectedValueSizes, RelativeAttention
from kvjax.evidence.residual_cosine import ResidualCosine
from kvjax.evidence.surprisal import Surprisal
from kvjax.evidence.tempered import Tempered
from kvjax.evidence.skewed_queries import SkewedQueries
from kvjax.evidence.token_in import TokenIn
from kvjax.evidence.window_queries import WindowQueries

__all__ = [
    "AttentionStatistics", "Block", "ChunkAttention", "ColumnSums", "Evidence", "GateAttention", "GateValues", "HiddenStates",
    "LateRows", "LocalMass", "LowRows", "Moments", "NearSum", "Need", "OfGroupMax", "OfGroupMean", "OfOutput", "OutputBlock",
    "OverPrompt", "PerToken", "Probed", "ProjectedValueNorm", "ProjectedValueSizes", "QueryMax", "QueryMoments", "QuerySpread",
    "RawKeys", "RelativeAttention", "ResidualCosine", "STANDARD", "Shape", "SkewedQueries", "Surprisal", "Tempered", "TokenIn",
    "Tokens", "WindowQueries", "concatenate", "empty", "folded", "merge_moments", "missing", "observe", "of_layer", "of_model",
    "of_output", "ordered", "reach", "restrict", "union",
]  # fmt: skip
