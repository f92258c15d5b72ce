"""Encoders: how slots are stored."""

from kvjax.placement import ByCallback
from kvjax.encode.product_quantized import ProductQuantized
from kvjax.encode.plain import Cast, Plain
from kvjax.placement import OnDevice, OnHost

__all__ = ["ByCallback", "Cast", "ProductQuantized", "OnDevice", "OnHost", "Plain"]
