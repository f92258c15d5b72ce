"""Qwen2 and Qwen2.5: Llama with biases on q, k and v.

Departs from Llama in three ways: q, k and v (not o) carry a bias; the small models tie the head; and where
`use_sliding_window` is true, the layers from `max_window_layers` on see the last `sliding_window` positions only
(a `layer_types` list, where there is one, says so layer by layer). Source: Yang et al. 2024, section 2.2.
"""

from dataclasses import replace
from typing import Any

from models import llama
from models.config import DecoderConfig, Fields

ARCHITECTURE = "Qwen2ForCausalLM"
NAMES = llama.NAMES


def config(hf: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a Qwen2 config.json. Raises ValueError with all that cannot be honoured."""
    fields = Fields(hf)
    fields.expect("use_mrope", False)
    base = fields.base()
    return fields.finish(replace(base, qkv_bias=True, windows=windows(fields, base.layers)))


def windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, None for full attention, as Qwen2 and Qwen3 spell it."""
    window, first = fields.get("sliding_window", 4096), fields.get("max_window_layers", 28)
    if not fields.get("use_sliding_window", False):
        window, first = None, layers
    implied = ["sliding_attention" if layer >= first and window else "full_attention" for layer in range(layers)]
    kinds = fields.get("layer_types") or implied
    wrong = len(kinds) != layers or set(kinds) - {"sliding_attention", "full_attention"}
    if wrong or (window is None and "sliding_attention" in kinds):
        fields.problems.append(
            f"layer_types must name {layers} layers, each full_attention, or sliding_attention where "
            f"use_sliding_window is true and sliding_window is set; got {kinds!r}"
        )
        return (None,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)
