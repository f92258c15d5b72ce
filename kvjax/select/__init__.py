"""Selectors: scores and budgets → which slots stay."""

from kvjax.select.above import AboveOrRecent
from kvjax.select.at_least import AtLeast
from kvjax.select.best_and_recent import BestAndRecent
from kvjax.select.block_share import BlockShare
from kvjax.select.chunks import Chunks
from kvjax.select.dense import DenseAndTop
from kvjax.select.each_chunk import EachChunk
from kvjax.select.fixed import Fixed
from kvjax.select.forced import ForcedTopK
from kvjax.select.group_shares import GroupShares
from kvjax.select.heavy_recent import HeavyRecent
from kvjax.select.kinds_and_best import KindsAndBest
from kvjax.select.runs import Runs
from kvjax.select.sinks_and_recent import SinksAndRecent
from kvjax.select.sampled import BestAndSampled
from kvjax.select.spared import SparedFirst
from kvjax.select.topk import TopK
from kvjax.select.two_stages import TwoStages

__all__ = [
    "AboveOrRecent", "AtLeast", "BestAndRecent", "BestAndSampled", "BlockShare", "Chunks", "DenseAndTop", "EachChunk", "Fixed",
    "ForcedTopK", "GroupShares", "HeavyRecent", "KindsAndBest", "Runs", "SinksAndRecent", "SparedFirst", "TopK",
    "TwoStages",
]  # fmt: skip
