"""How slots are stored: a codec for keys and one for values, where values live, and which positions keys and queries have."""

from kvjax.codec import AsIs, Cast, ProductQuantized
from kvjax.encode.positions import Absolute, Clamped, InCache, Rerotated
from kvjax.encode.stored import Stored
from kvjax.placement import ByCallback, OnDevice, OnHost

__all__ = [
    "Absolute", "AsIs", "ByCallback", "Cast", "Clamped", "InCache", "OnDevice", "OnHost", "ProductQuantized", "Rerotated", "Stored",
]  # fmt: skip
