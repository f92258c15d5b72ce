"""The fewest slots whose attention reaches a share of the mass, from scores."""

from .api import select_top_p
from .xla import top_p_mask

__all__ = ["select_top_p", "top_p_mask"]
