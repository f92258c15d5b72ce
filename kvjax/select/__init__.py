"""Selectors: scores and budgets → which slots stay."""

from kvjax.select.block_share import BlockShare
from kvjax.select.heavy_recent import HeavyRecent
from kvjax.select.topk import TopK

__all__ = ["BlockShare", "HeavyRecent", "TopK"]
