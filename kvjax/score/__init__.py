"""Scorers: evidence → how much each slot is worth keeping."""

from kvjax.score.accumulated import AccumulatedAttention, VisibleMeanAttention
from kvjax.score.compactor import Compactor
from kvjax.score.distance_series import DistanceSeries, OwnDistanceSeries
from kvjax.score.expected import ExpectedAttention
from kvjax.score.geometry import KeyDiff
from kvjax.score.heads import AllMax, AllMean, GroupMax, GroupMean
from kvjax.score.in_blocks import BlockKeyDiff, ChunkKeyDiff
from kvjax.score.lag import LagSpread
from kvjax.score.last_query import LastQuery
from kvjax.score.leverage import WindowLeverage
from kvjax.score.non_causal import NonCausalAttention
from kvjax.score.norm import KeyNorm
from kvjax.score.pool import AvgPool, MaxPool, NoPool
from kvjax.score.position import Recency
from kvjax.score.prompt_first import PromptFirst
from kvjax.score.query_filter import OwnQueryFilter, QueryFilter
from kvjax.score.random_draws import FreshDraws
from kvjax.score.recent_on_top import RecentOnTop
from kvjax.score.redundancy import Redundancy
from kvjax.score.retrieval_heads import RetrievalHeads
from kvjax.score.value_weighted import ValueWeighted
from kvjax.score.window import WindowAttention

__all__ = [
    "AccumulatedAttention", "AllMax", "AllMean", "AvgPool", "BlockKeyDiff", "ChunkKeyDiff", "Compactor", "DistanceSeries",
    "ExpectedAttention", "FreshDraws", "GroupMax", "GroupMean", "KeyDiff", "KeyNorm", "LagSpread", "LastQuery", "MaxPool",
    "NoPool", "NonCausalAttention", "OwnDistanceSeries", "OwnQueryFilter", "PromptFirst", "QueryFilter", "Recency",
    "RecentOnTop", "Redundancy", "RetrievalHeads", "ValueWeighted", "VisibleMeanAttention", "WindowAttention", "WindowLeverage",
]  # fmt: skip
