"""Attention of new tokens over the packed pool, where every (row, KV head) owns a region of its own length."""

from .api import log_denominator, probabilities, ragged_attention, ragged_scores, attention_with_weights

__all__ = ["log_denominator", "probabilities", "ragged_attention", "ragged_scores", "attention_with_weights"]
