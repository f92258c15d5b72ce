"""Selectors: scores and budgets → which slots stay."""

from kvjax.select.topk import TopK

__all__ = ["TopK"]
