"""Attention over a list of slots: what retrieval chose, in any order."""

from .api import gather_attention

__all__ = ["gather_attention"]
