"""Moving slots: holes of a region filled, merged rows written back, kept rows packed, regions carried to another pool."""

from . import host
from .api import compact, move_regions, pick, rewrite
from .moves import Moves, first, plan

__all__ = ["Moves", "compact", "first", "host", "move_regions", "pick", "plan", "rewrite"]
