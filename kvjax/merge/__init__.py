"""Mergers: evicted slots into kept ones."""

from kvjax.merge.drop import Drop
from kvjax.merge.nearest import NearestKey

__all__ = ["Drop", "NearestKey"]
