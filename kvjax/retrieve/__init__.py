"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.cumulative import AsTheyAre, CumulativeMass, GroupMean, GroupUnion, QueryHead, Renormalised
from kvjax.retrieve.everything import Everything
from kvjax.retrieve.mask_heads import MaskHeads, ZeroOutput, ZeroQuery

__all__ = [
    "AsTheyAre", "CumulativeMass", "Everything", "GroupMean", "GroupUnion", "MaskHeads", "QueryHead", "Renormalised",
    "ZeroOutput", "ZeroQuery",
]  # fmt: skip
