"""Attention of new tokens over the packed pool, where every (row, KV head) owns a region of its own length."""

from .api import ragged_attention, ragged_probs

__all__ = ["ragged_attention", "ragged_probs"]
