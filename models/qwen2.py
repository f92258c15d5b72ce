"""Qwen2 and Qwen2.5: Llama with biases on q, k and v.

Departs from Llama in three ways: q, k and v (not o) carry a bias; the small models tie the head; and where
`use_sliding_window` is true, the layers from `max_window_layers` on see the last `sliding_window` positions only
(a `layer_types` list, where there is one, says so layer by layer). Source: Yang et al. 2024, section 2.2.
"""

from dataclasses import replace
from typing import Any

from kvjax.checks import brief
from models import llama
from models.config import DecoderConfig, Fields
from models.numbers import whole

ARCHITECTURE = "Qwen2ForCausalLM"
NAMES = llama.NAMES


def config(hf: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a Qwen2 config.json. Raises ValueError with all that cannot be honoured."""
    fields = Fields(hf)
    for name in ("use_mrope", "attention_bias"):
        fields.expect(name, False)
    base = fields.base(kv_heads=32, positions=32768)
    return fields.finish(replace(base, qkv_bias=True, windows=windows(fields, base.layers)))


def windows(fields: Fields, layers: int) -> tuple[int | None, ...]:
    """Return the sliding window of each layer, None for full attention, as Qwen2 and Qwen3 spell it."""
    window, first = _window(fields), _first(fields)
    if not fields.flag("use_sliding_window"):
        window, first = None, layers
    implied = ["sliding_attention" if layer >= first and window else "full_attention" for layer in range(layers)]
    kinds = fields.get("layer_types") or implied
    known = ("sliding_attention", "full_attention")
    wrong = not isinstance(kinds, list) or len(kinds) != layers or any(kind not in known for kind in kinds)
    if wrong or (window is None and "sliding_attention" in kinds):
        fields.problems.append(
            f"layer_types must name {layers} layers, each full_attention, or sliding_attention where "
            f"use_sliding_window is true and sliding_window is set; got {brief(kinds)}"
        )
        return (None,) * layers
    return tuple(window if kind == "sliding_attention" else None for kind in kinds)


def _window(fields: Fields) -> int | None:
    window = fields.get("sliding_window", 4096)
    return None if window is None else fields.size("sliding_window", window)


def _first(fields: Fields) -> int:
    try:
        return whole("max_window_layers", fields.get("max_window_layers", 28), least=0)
    except ValueError as error:
        fields.problems.append(str(error))
        return 0
