"""Codecs: what a slot's bytes are."""

from kvjax.codec.affine import Affine
from kvjax.codec.balanced import Balanced
from kvjax.codec.channel_range import ChannelRange
from kvjax.codec.channel_separable import ChannelSeparable
from kvjax.codec.codec import Codec
from kvjax.codec.dense import AsIs, Cast
from kvjax.codec.fp8 import Fp8
from kvjax.codec.kept_channels import KeptChannels
from kvjax.codec.layer_regions import LayerRegions
from kvjax.codec.product_quantized import ProductQuantized

__all__ = [
    "Affine", "AsIs", "Balanced", "Cast", "ChannelRange", "ChannelSeparable", "Codec", "Fp8", "KeptChannels",
    "LayerRegions", "ProductQuantized",
]
