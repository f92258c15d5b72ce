"""How slots are stored: a codec for keys and one for values, an exact window, positions of keys and queries, where values live."""

from kvjax.codec import Affine, AsIs, Cast, ProductQuantized
from kvjax.encode.positions import Absolute, Clamped, InCache, Rerotated, Unrotated
from kvjax.encode.stored import Stored
from kvjax.encode.window import BlockFlush, Slide, Window, Windows
from kvjax.placement import ByCallback, OnDevice, OnHost

__all__ = [
    "Absolute", "Affine", "AsIs", "BlockFlush", "ByCallback", "Cast", "Clamped", "InCache", "OnDevice", "OnHost",
    "ProductQuantized", "Rerotated", "Slide", "Stored", "Unrotated", "Window", "Windows",
]
