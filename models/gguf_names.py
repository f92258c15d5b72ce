"""llama.cpp's names and row order, told as Hugging Face's."""

import numpy as np

_TOP = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}


def hf_name(name: str) -> str:
    """Return Hugging Face's name of a tensor; a name with no counterpart as it is (it will be called unexpected)."""
    match name.split("."):
        case ["blk", layer, what, kind] if what in _LAYER:
            return f"model.layers.{layer}.{_LAYER[what]}.{kind}"
        case _:
            return _TOP.get(name, name)


def to_halves(rows: np.ndarray, heads: int) -> np.ndarray:
    """Return q or k rows [heads * d, ...] with channels (2i, 2i + 1) moved to (i, i + d/2) in each head."""
    paired = rows.reshape(heads, -1, 2, *rows.shape[1:])
    return np.ascontiguousarray(paired.swapaxes(1, 2)).reshape(rows.shape)
