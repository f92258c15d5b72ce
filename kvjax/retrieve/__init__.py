"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.top_p import Unnormalized, TopP, SetOfGroupMean, UnionOfGroup, SetPerQueryHead, Renormalized
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from kvjax.retrieve.full_attention import FullAttention
from kvjax.retrieve.mask_heads import MaskHeads, ZeroOutput, ZeroQuery
from kvjax.retrieve.top_pages import OwnPages, SharedPages, TopPages

__all__ = [
    "Unnormalized", "Clusters", "TopP", "FullAttention", "SetOfGroupMean", "UnionOfGroup", "MaskHeads", "OwnPages", "PivotRefresh",
    "SetPerQueryHead", "Renormalized", "SharedPages", "Sliding", "TopPages", "Tumbling", "ZeroOutput", "ZeroQuery",
]  # fmt: skip
