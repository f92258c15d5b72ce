"""Placements: where values live."""

from kvjax.placement.by_callback import ByCallback
from kvjax.placement.on_device import OnDevice
from kvjax.placement.on_host import OnHost

__all__ = [
    "ByCallback", "OnDevice", "OnHost",
]
