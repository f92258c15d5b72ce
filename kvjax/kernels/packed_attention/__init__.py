"""Attention straight from affine codes of a few bits, and the exact slots beside them."""

from .api import packed_attention
from .packed import Packed

__all__ = ["Packed", "packed_attention"]
