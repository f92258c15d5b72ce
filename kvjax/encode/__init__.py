"""How slots are stored: a codec for keys and one for values, an exact window, positions of keys and queries, where values live."""

from kvjax.codec import Affine, AsIs, Cast, ProductQuantized
from kvjax.encode.accumulating import Accumulating, WithoutDecisions
from kvjax.encode.by_layer import EncodeByLayer
from kvjax.encode.positions import Absolute, Clamped, InCache, Rerotated, Unrotated
from kvjax.encode.stored import Stored
from kvjax.encode.tier_rule import TierRule
from kvjax.encode.tiered import Tiered
from kvjax.encode.window import BlockFlush, Slide, Window, Windows
from kvjax.placement import ByCallback, OnDevice, OnHost

__all__ = [
    "Absolute", "Accumulating", "Affine", "AsIs", "BlockFlush", "ByCallback", "Cast", "Clamped", "EncodeByLayer", "InCache",
    "OnDevice", "OnHost", "ProductQuantized", "Rerotated", "Slide", "Stored", "TierRule", "Tiered", "Unrotated", "Window",
    "Windows", "WithoutDecisions",
]  # fmt: skip
