"""New tokens behind each region's last slot, in place."""

from .api import append
from .slots import behind

__all__ = ["append", "behind"]
