"""A prompt through the model once: dense keys and values, and the evidence that stages read."""

from kvjax.prefill.attention import CausalAttention, PrefillAttention, PrefillChunk
from kvjax.prefill.far_attention import FarBlockAttention
from kvjax.prefill.merged_attention import MergedAttention
from kvjax.prefill.minference import MInference
from kvjax.prefill.patterns import AShape, BlockSparse, VerticalSlash
from kvjax.prefill.prefilled import Prefilled, PrefilledRow
from kvjax.prefill.probe import probe
from kvjax.prefill.repeat_context import RepeatedContext
from kvjax.prefill.run import buffers, prefill, resolve_needs
from kvjax.prefill.saved import load_prefilled, save_prefilled
from kvjax.prefill.second_pass import second_pass
from kvjax.prefill.star_attention import StarAttention

__all__ = [
    "AShape", "BlockSparse", "CausalAttention", "FarBlockAttention", "MInference", "MergedAttention", "PrefillAttention",
    "PrefillChunk", "Prefilled", "PrefilledRow", "RepeatedContext", "StarAttention", "VerticalSlash", "buffers", "load_prefilled",
    "prefill", "probe", "resolve_needs", "save_prefilled", "second_pass",
]  # fmt: skip
