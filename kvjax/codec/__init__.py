"""Codecs: what a slot's bytes are."""

from kvjax.codec.affine import Affine
from kvjax.codec.codec import Codec
from kvjax.codec.dense import AsIs, Cast
from kvjax.codec.layer_regions import LayerRegions
from kvjax.codec.product_quantized import ProductQuantized

__all__ = [
    "Affine", "AsIs", "Cast", "Codec", "LayerRegions", "ProductQuantized",
]
