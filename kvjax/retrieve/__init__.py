"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.cumulative import AsTheyAre, CumulativeMass, GroupMean, GroupUnion, QueryHead, Renormalised
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from kvjax.retrieve.everything import Everything
from kvjax.retrieve.mask_heads import MaskHeads, ZeroOutput, ZeroQuery
from kvjax.retrieve.top_pages import OwnPages, SharedPages, TopPages

__all__ = [
    "AsTheyAre", "Clusters", "CumulativeMass", "Everything", "GroupMean", "GroupUnion", "MaskHeads", "OwnPages", "PivotRefresh",
    "QueryHead", "Renormalised", "SharedPages", "Sliding", "TopPages", "Tumbling", "ZeroOutput", "ZeroQuery",
]  # fmt: skip
