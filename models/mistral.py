"""Mistral 7B and its successors: Llama with a sliding window.

Departs from Llama in two ways. Each layer attends to the last `sliding_window` positions only, the query's own among
them (Jiang et al. 2023, section 2); from v0.2 on the window is null and attention is full. And `head_dim` may be
given apart from hidden_size / num_attention_heads (Mistral Nemo: 32 heads of 128 in a width of 5120).
"""

from dataclasses import replace
from typing import Any

from models import llama
from models.config import DecoderConfig, Fields

ARCHITECTURE = "MistralForCausalLM"
NAMES = llama.NAMES


def config(hf: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a Mistral config.json; an absent `sliding_window` means 4096, a null none at all.

    Raises ValueError with all that cannot be honoured.
    """
    fields = Fields(hf)
    fields.expect("attention_bias", False)
    base = fields.base(kv_heads=8, positions=131072)
    window = fields.get("sliding_window", 4096)
    if window is not None:
        window = fields.size("sliding_window", window)
    return fields.finish(replace(base, windows=(window,) * base.layers))
