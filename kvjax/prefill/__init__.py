"""A prompt through the model once: dense keys and values, and the evidence that stages read."""

from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk, StarAttention
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.probe import probe
from kvjax.prefill.run import buffers, prefill, resolve_needs
from kvjax.prefill.saved import load_prefilled, save_prefilled

__all__ = [
    "CausalAttention", "PrefillAttention", "PrefillChunk", "Prefilled", "PrefilledRow", "StarAttention", "buffers",
    "load_prefilled", "prefill", "probe", "resolve_needs", "save_prefilled",
]  # fmt: skip
