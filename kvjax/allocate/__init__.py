"""Allocators: scores → slots for every head, summing exactly to the total."""

from kvjax.allocate.across_model import AcrossModel
from kvjax.allocate.adaptive import Adaptive
from kvjax.allocate.all_held import AllHeld
from kvjax.allocate.adaptive_rounded import AdaptiveRounded
from kvjax.allocate.by_layer import AllocateByLayer, Everything
from kvjax.allocate.composites import Composites
from kvjax.allocate.cosine_decay import CosineDecay
from kvjax.allocate.exact import exact_alloc
from kvjax.allocate.forced import ForcedFirst
from kvjax.allocate.full_heads import FullHeads, full_heads
from kvjax.allocate.head_rules import RuleSlots
from kvjax.allocate.layer_weights import LayerWeights
from kvjax.allocate.lazy_layers import LazyLayers
from kvjax.allocate.origin_shares import OriginShares
from kvjax.allocate.preference import LayerPreference
from kvjax.allocate.pyramid import Pyramid, PyramidRounded
from kvjax.allocate.repair import ArgMax, RoundRobin
from kvjax.allocate.roles import ExactTotal, Floor, RoleBudgets
from kvjax.allocate.short_rows import ShortRowsWhole
from kvjax.allocate.spread import ClipAndSpread, LargestRemainders
from kvjax.allocate.three_groups import ThreeGroups
from kvjax.allocate.uniform import Uniform
from kvjax.allocate.variance import (
    AttentionVariance,
    ExponentialDecay,
    HeadVariance,
    HeadsMinMax,
    InverseVarianceSoftmax,
    LayersMinMax,
    OverMean,
    Raw,
    Reciprocal,
)
from kvjax.allocate.whole_layers import WholeLayers

__all__ = [
    "AcrossModel", "Adaptive", "AdaptiveRounded", "AllHeld", "AllocateByLayer", "ArgMax", "AttentionVariance", "ClipAndSpread",
    "Composites", "CosineDecay", "Everything", "ExactTotal", "ExponentialDecay", "Floor", "ForcedFirst", "FullHeads",
    "HeadVariance", "HeadsMinMax", "InverseVarianceSoftmax", "LargestRemainders", "LayerPreference", "LayerWeights",
    "LayersMinMax", "LazyLayers", "OriginShares", "OverMean", "Pyramid", "PyramidRounded", "Raw", "Reciprocal", "RoleBudgets",
    "RoundRobin", "RuleSlots", "ShortRowsWhole", "ThreeGroups", "Uniform", "WholeLayers", "exact_alloc", "full_heads",
]  # fmt: skip
