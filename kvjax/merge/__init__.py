"""Mergers: evicted slots into kept ones."""

from kvjax.merge.drop import Drop
from kvjax.merge.nearest import NearestKey
from kvjax.merge.weighted import (
    EMA,
    Average,
    Both,
    Fixed,
    Keys,
    NoThreshold,
    ProportionalNearest,
    ScatterMean,
    SoftmaxWeights,
    Values,
    WeightedNearest,
)

__all__ = [
    "EMA",
    "Average",
    "Both",
    "Drop",
    "Fixed",
    "Keys",
    "NearestKey",
    "NoThreshold",
    "ProportionalNearest",
    "ScatterMean",
    "SoftmaxWeights",
    "Values",
    "WeightedNearest",
]
