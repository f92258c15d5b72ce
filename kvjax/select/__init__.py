"""Selectors: scores and budgets → which slots stay."""

from kvjax.select.heavy_recent import HeavyRecent
from kvjax.select.topk import TopK

__all__ = ["HeavyRecent", "TopK"]
