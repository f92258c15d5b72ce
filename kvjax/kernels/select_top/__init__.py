"""The k largest keys of every row, with a traced k."""

from .api import select_top

__all__ = ["select_top"]
