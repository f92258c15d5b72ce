"""Scorers: evidence → how much each slot is worth keeping."""

from kvjax.score.accumulated import AccumulatedAttention, VisibleMeanAttention
from kvjax.score.expected import ExpectedAttention
from kvjax.score.geometry import KeyDiff
from kvjax.score.heads import AllMean, GroupMax, GroupMean
from kvjax.score.lag import LagSpread
from kvjax.score.last_query import LastQuery
from kvjax.score.norm import KeyNorm
from kvjax.score.pool import AvgPool, MaxPool, NoPool
from kvjax.score.position import Recency
from kvjax.score.retrieval_heads import RetrievalHeads
from kvjax.score.window import WindowAttention

__all__ = [
    "AccumulatedAttention", "AllMean", "AvgPool", "ExpectedAttention", "GroupMax", "GroupMean", "KeyDiff", "KeyNorm", "LagSpread", "LastQuery",
    "MaxPool", "NoPool", "Recency", "RetrievalHeads", "VisibleMeanAttention", "WindowAttention",
]  # fmt: skip
