"""The k largest keys of every row, with a traced k."""

from .api import select_top
from .order import ordered

__all__ = ["ordered", "select_top"]
