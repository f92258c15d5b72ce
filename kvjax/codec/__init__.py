"""Codecs: what a slot's bytes are."""

from kvjax.codec.affine import Affine
from kvjax.codec.balanced import Balanced
from kvjax.codec.channel_range import ChannelRange
from kvjax.codec.channel_separable import ChannelSeparable
from kvjax.codec.codec import Codec
from kvjax.codec.component_groups import ComponentGroups
from kvjax.codec.coupled import Coupled
from kvjax.codec.dense import AsIs, Cast
from kvjax.codec.fp8 import Fp8
from kvjax.codec.kept_channels import KeptChannels
from kvjax.codec.layer_regions import LayerRegions
from kvjax.codec.levels import Levels
from kvjax.codec.low_rank import LowRank
from kvjax.codec.non_uniform import NonUniformChannels, NonUniformTokens
from kvjax.codec.normed import Normed
from kvjax.codec.outlier_channels import OutlierChannels
from kvjax.codec.outliers import Outliers
from kvjax.codec.product_quantized import ProductQuantized
from kvjax.codec.refined import Refined
from kvjax.codec.rotated import Rotated
from kvjax.codec.rotation import Haar, Hadamard, Rotation
from kvjax.codec.sign_sketch import SignSketch
from kvjax.codec.transformed import Transformed
from kvjax.codec.uniform import Uniform

__all__ = [
    "Affine", "AsIs", "Balanced", "Cast", "ChannelRange", "ChannelSeparable", "Codec", "ComponentGroups", "Coupled", "Fp8", "Haar",
    "Hadamard", "KeptChannels", "LayerRegions", "Levels", "LowRank", "NonUniformChannels", "NonUniformTokens", "Normed",
    "OutlierChannels", "Outliers", "ProductQuantized", "Refined", "Rotated", "Rotation", "SignSketch", "Transformed", "Uniform",
]  # fmt: skip
