"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.cumulative import AsTheyAre, CumulativeMass, GroupMean, GroupUnion, QueryHead, Renormalised
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from kvjax.retrieve.everything import Everything
from kvjax.retrieve.mask_heads import MaskHeads, ZeroOutput, ZeroQuery

__all__ = [
    "AsTheyAre", "Clusters", "CumulativeMass", "Everything", "GroupMean", "GroupUnion", "MaskHeads", "PivotRefresh", "QueryHead",
    "Renormalised", "Sliding", "Tumbling", "ZeroOutput", "ZeroQuery",
]  # fmt: skip
