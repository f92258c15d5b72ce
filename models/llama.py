"""Llama 2, 3, 3.1 and 3.2 (and SmolLM2): the family the other three are told apart from.

    x = embed[token]
    x = x + O attend(rope(Q norm(x)), rope(K norm(x)), V norm(x))          per layer
    x = x + down(silu(gate norm(x)) * up norm(x))
    logits = head norm(x)

Grouped query heads (Llama 2 70B on), no biases, an untied head (tied in 3.2 and SmolLM2), full attention in each layer,
llama3 frequency scaling from 3.1 on. Sources: Touvron et al. 2023; Dubey et al. 2024, section 3.2.
"""

from dataclasses import replace
from typing import Any

from models.config import DecoderConfig, Fields

ARCHITECTURE = "LlamaForCausalLM"

#: Our parameter path -> Hugging Face's tensor name; {l} is the layer.
NAMES = {
    "embed.weight": "model.embed_tokens.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
    "layers.{l}.attention_norm.weight": "model.layers.{l}.input_layernorm.weight",
    "layers.{l}.attention.q.weight": "model.layers.{l}.self_attn.q_proj.weight",
    "layers.{l}.attention.k.weight": "model.layers.{l}.self_attn.k_proj.weight",
    "layers.{l}.attention.v.weight": "model.layers.{l}.self_attn.v_proj.weight",
    "layers.{l}.attention.o.weight": "model.layers.{l}.self_attn.o_proj.weight",
    "layers.{l}.attention.q.bias": "model.layers.{l}.self_attn.q_proj.bias",
    "layers.{l}.attention.k.bias": "model.layers.{l}.self_attn.k_proj.bias",
    "layers.{l}.attention.v.bias": "model.layers.{l}.self_attn.v_proj.bias",
    "layers.{l}.attention.o.bias": "model.layers.{l}.self_attn.o_proj.bias",
    "layers.{l}.mlp_norm.weight": "model.layers.{l}.post_attention_layernorm.weight",
    "layers.{l}.mlp.gate.weight": "model.layers.{l}.mlp.gate_proj.weight",
    "layers.{l}.mlp.up.weight": "model.layers.{l}.mlp.up_proj.weight",
    "layers.{l}.mlp.down.weight": "model.layers.{l}.mlp.down_proj.weight",
}


def config(hf: dict[str, Any]) -> DecoderConfig:
    """Return the decoder of a Llama config.json; `attention_bias` puts a bias on q, k, v and o. Raises ValueError."""
    fields = Fields(hf)
    fields.expect("rope_interleaved", False)
    bias = fields.flag("attention_bias")
    return fields.finish(replace(fields.base(), qkv_bias=bias, out_bias=bias))
