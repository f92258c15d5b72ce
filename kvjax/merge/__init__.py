"""Mergers: evicted slots into kept ones."""

from kvjax.merge.drop import Drop

__all__ = ["Drop"]
