"""Attention of a prompt's queries over chosen columns, diagonals and blocks: only tiles with something chosen are computed."""

from .api import sparse_attention
from .chosen import BLOCK, Chosen, tiles

__all__ = ["BLOCK", "Chosen", "sparse_attention", "tiles"]
