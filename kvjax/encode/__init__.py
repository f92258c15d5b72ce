"""How slots are stored: a codec for keys and one for values, and where values live."""

from kvjax.codec import AsIs, Cast, ProductQuantized
from kvjax.encode.stored import Stored
from kvjax.placement import ByCallback, OnDevice, OnHost

__all__ = ["AsIs", "ByCallback", "Cast", "OnDevice", "OnHost", "ProductQuantized", "Stored"]
