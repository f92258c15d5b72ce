"""How slots are stored: a codec for keys and one for values, an exact window, and where values live."""

from kvjax.codec import Affine, AsIs, Cast, ProductQuantized
from kvjax.encode.stored import Stored
from kvjax.encode.window import BlockFlush, Slide, Window, Windows
from kvjax.placement import ByCallback, OnDevice, OnHost

__all__ = [
    "Affine", "AsIs", "BlockFlush", "ByCallback", "Cast", "OnDevice", "OnHost", "ProductQuantized", "Slide", "Stored", "Window",
    "Windows",
]  # fmt: skip
