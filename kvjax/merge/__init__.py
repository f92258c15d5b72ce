"""Mergers: evicted slots into kept ones."""

from kvjax.merge.absorbed import Absorbed
from kvjax.merge.chance import ByChance
from kvjax.merge.convolved import Convolved, init_convolution
from kvjax.merge.dense import IntoDense, LargestDot, SmallestDistance
from kvjax.merge.drop import Drop
from kvjax.merge.gaussian import GaussianRuns
from kvjax.merge.matched import MatchedAttention
from kvjax.merge.nearest import NearestKey
from kvjax.merge.running import RunningMean
from kvjax.merge.votes import ByVotes
from kvjax.merge.weighted import (
    EMA,
    Average,
    Feature,
    Fixed,
    KeyLikeness,
    NoThreshold,
    OwnLikeness,
    ProportionalNearest,
    ScatterMean,
    SoftmaxWeights,
    ValueLikeness,
    WeightedNearest,
)

__all__ = [
    "Absorbed", "Average", "ByChance", "ByVotes", "Convolved", "Drop", "EMA", "Feature", "Fixed", "GaussianRuns", "IntoDense",
    "KeyLikeness", "LargestDot", "MatchedAttention", "NearestKey", "NoThreshold", "OwnLikeness", "ProportionalNearest",
    "RunningMean", "ScatterMean", "SmallestDistance", "SoftmaxWeights", "ValueLikeness", "WeightedNearest", "init_convolution",
]
