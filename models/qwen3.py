"""Qwen3 (dense): Llama with an RMSNorm on every query and key head.

Departs from Llama in three ways: each head of q and k passes an RMSNorm over its d channels, with one weight shared by
the heads of a layer, before the rotary embedding; `head_dim` stands alone (128 where absent); sliding windows are
spelt as in Qwen2. `attention_bias` puts a bias on q, k, v and o (false in all released models).
Source: Yang et al. 2025, section 2.
"""

from dataclasses import replace
from typing import Any

from models import llama, qwen2
from models.config import DecoderConfig, Fields

ARCHITECTURE = "Qwen3ForCausalLM"
NAMES = llama.NAMES | {
    "layers.{l}.attention.q_norm.weight": "model.layers.{l}.self_attn.q_norm.weight",
    "layers.{l}.attention.k_norm.weight": "model.layers.{l}.self_attn.k_norm.weight",
}


def config(hf: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a Qwen3 config.json. Raises ValueError with all that cannot be honoured."""
    fields = Fields(hf)
    base = fields.base(head_dim=128, kv_heads=32, positions=32768)
    bias = fields.flag("attention_bias")
    windows = qwen2.windows(fields, base.layers)
    return fields.finish(replace(base, qkv_bias=bias, out_bias=bias, qk_norm=True, windows=windows))
