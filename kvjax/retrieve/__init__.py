"""Retrievers: query → the slots it reads."""

from kvjax.retrieve.absorbed import WithAbsorbed
from kvjax.retrieve.clusters import Clusters
from kvjax.retrieve.top_p import Unnormalized, TopP, SetOfGroupMean, UnionOfGroup, SetPerQueryHead, Renormalized
from kvjax.retrieve.drift import PivotRefresh, Sliding, Tumbling
from kvjax.retrieve.dominant import Dominant, HalfSplit, Interleaved
from kvjax.retrieve.dominant_channels import DominantChannels
from kvjax.retrieve.filter_layers import FilterLayers, Probabilities, RawLogits
from kvjax.retrieve.far_blocks import FarBlocks
from kvjax.retrieve.full_attention import FullAttention
from kvjax.retrieve.host_rows import HostRows
from kvjax.retrieve.landmarks import Landmarks
from kvjax.retrieve.mask_heads import MaskHeads, ZeroOutput, ZeroQuery
from kvjax.retrieve.prompt_codes import PromptCodes
from kvjax.retrieve.sampled_tokens import SampledTokens
from kvjax.retrieve.speculated import Speculated
from kvjax.retrieve.two_levels import TwoLevels
from kvjax.retrieve.top_pages import OwnPages, SharedPages, TopPages

__all__ = [
    "Clusters", "Dominant", "DominantChannels", "FarBlocks", "FilterLayers", "FullAttention", "HalfSplit", "HostRows",
    "Interleaved", "Landmarks", "MaskHeads", "OwnPages", "PivotRefresh", "Probabilities", "PromptCodes", "RawLogits",
    "Renormalized", "SampledTokens", "SetOfGroupMean", "SetPerQueryHead", "SharedPages", "Sliding", "Speculated", "TopP",
    "TopPages", "Tumbling", "TwoLevels", "UnionOfGroup", "Unnormalized", "WithAbsorbed", "ZeroOutput", "ZeroQuery",
]  # fmt: skip
