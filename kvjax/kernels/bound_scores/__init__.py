"""The most that a query's product with any key of a page can be, from the page's least and greatest keys."""

from .api import bound_scores

__all__ = ["bound_scores"]
