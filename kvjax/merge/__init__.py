"""Mergers: evicted slots into kept ones."""

from kvjax.merge.chance import ByChance
from kvjax.merge.dense import IntoDense, LargestDot, SmallestDistance
from kvjax.merge.drop import Drop
from kvjax.merge.gaussian import GaussianRuns
from kvjax.merge.nearest import NearestKey
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
    "Average", "ByChance", "Drop", "EMA", "Feature", "Fixed", "GaussianRuns", "IntoDense", "KeyLikeness", "LargestDot",
    "NearestKey", "NoThreshold", "OwnLikeness", "ProportionalNearest", "ScatterMean", "SmallestDistance", "SoftmaxWeights",
    "ValueLikeness", "WeightedNearest",
]
