"""Scorers: evidence → how much each slot is worth keeping."""

from kvjax.score.accumulated import AccumulatedAttention, VisibleMeanAttention
from kvjax.score.attention_gated import AttentionGated
from kvjax.score.compactor import Compactor
from kvjax.score.distance_series import DistanceSeries, OwnDistanceSeries
from kvjax.score.drawn import Drawn
from kvjax.score.expected import ExpectedAttention
from kvjax.score.fading import FadingAttention
from kvjax.score.gated import Gated
from kvjax.score.geometry import KeyDiff
from kvjax.score.head_rules import HeadRules
from kvjax.score.heads import AllMax, AllMean, GroupMax, GroupMean
from kvjax.score.highest import HighestRow
from kvjax.score.in_blocks import BlockKeyDiff, ChunkKeyDiff
from kvjax.score.judged_by_next import JudgedByNext
from kvjax.score.lag import LagSpread
from kvjax.score.last_query import LastQuery
from kvjax.score.late_attention import LateAttention
from kvjax.score.look_once import LookOnce
from kvjax.score.lookahead import LookaheadAttention
from kvjax.score.levelled import LevelledWindow
from kvjax.score.leverage import WindowLeverage
from kvjax.score.mean_variance import MeanAndVariance
from kvjax.score.neighbours import NeighbourLikeness
from kvjax.score.non_causal import NonCausalAttention
from kvjax.score.norm import KeyNorm
from kvjax.score.per_slot import per_slot
from kvjax.score.pool import AvgPool, MaxPool, NoPool
from kvjax.score.position import Recency
from kvjax.score.prompt_first import PromptFirst
from kvjax.score.proxies import ProxyQueries
from kvjax.score.pseudo import PseudoAttention
from kvjax.score.query_filter import OwnQueryFilter, QueryFilter
from kvjax.score.random_draws import FreshDraws
from kvjax.score.raw_mass import RawMass
from kvjax.score.recent_on_top import RecentOnTop
from kvjax.score.reconstruction import Reconstruction
from kvjax.score.recurrence import Recurrence
from kvjax.score.redundancy import Redundancy
from kvjax.score.reference_attention import Pursuit, ReferenceAttention
from kvjax.score.retention import Retention
from kvjax.score.retrieval_heads import RetrievalHeads
from kvjax.score.seldom_low import SeldomLow
from kvjax.score.steady_mean import SteadyMean
from kvjax.score.step_attention import StepAttention
from kvjax.score.surprise import Surprise
from kvjax.score.tempered import TemperedAttention
from kvjax.score.value_weighted import ValueWeighted
from kvjax.score.window import PooledByQueryHead, WindowAttention
from kvjax.score.with_heads_mean import WithHeadsMean
from kvjax.score.worst_case import WorstCase

__all__ = [
    "AccumulatedAttention", "AllMax", "AllMean", "AttentionGated", "AvgPool", "BlockKeyDiff", "ChunkKeyDiff", "Compactor",
    "DistanceSeries", "Drawn", "ExpectedAttention", "FadingAttention", "FreshDraws", "Gated", "GroupMax", "GroupMean", "HeadRules",
    "HighestRow", "JudgedByNext", "KeyDiff", "KeyNorm", "LagSpread", "LastQuery", "LateAttention", "LevelledWindow", "LookOnce",
    "LookaheadAttention", "MaxPool", "MeanAndVariance", "NeighbourLikeness", "NoPool", "NonCausalAttention", "OwnDistanceSeries",
    "OwnQueryFilter", "PooledByQueryHead", "PromptFirst", "ProxyQueries", "PseudoAttention", "Pursuit", "QueryFilter", "RawMass",
    "Recency", "RecentOnTop", "Reconstruction", "Recurrence", "Redundancy", "ReferenceAttention", "Retention", "RetrievalHeads",
    "SeldomLow", "SteadyMean", "StepAttention", "Surprise", "TemperedAttention", "ValueWeighted", "VisibleMeanAttention",
    "WindowAttention", "WindowLeverage", "WithHeadsMean", "WorstCase", "per_slot",
]  # fmt: skip
