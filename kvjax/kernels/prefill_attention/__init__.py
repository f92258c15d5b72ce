"""Causal attention of a prompt (or of a chunk of it) over the prompt's keys, in memory linear in its length."""

from .api import attention_and_column_sums, column_sums, prefill_attention

__all__ = ["attention_and_column_sums", "column_sums", "prefill_attention"]
