"""The metadata of a .gguf file, told as a config.json, so that a family reads it as it reads any other."""

from types import ModuleType
from typing import Any

from kvjax.checks import brief
from models import llama, mistral, qwen2, qwen3
from models.numbers import number, one_line
from models.rope import yarn_scale

#: Families by the architecture a file names. Mistral models are mostly written as "llama".
FAMILIES: dict[str, ModuleType] = {"llama": llama, "mistral": mistral, "qwen2": qwen2, "qwen3": qwen3}

#: Metadata `{architecture}.NAME` -> field of config.json.
_FIELDS = {
    "block_count": "num_hidden_layers",
    "context_length": "max_position_embeddings",
    "embedding_length": "hidden_size",
    "feed_forward_length": "intermediate_size",
    "attention.head_count": "num_attention_heads",
    "attention.head_count_kv": "num_key_value_heads",
    "attention.key_length": "head_dim",
    "attention.layer_norm_rms_epsilon": "rms_norm_eps",
    "attention.sliding_window": "sliding_window",
    "rope.freq_base": "rope_theta",
}
_SCALING = {
    "rope.scaling.type": "rope_type",
    "rope.scaling.factor": "factor",
    "rope.scaling.original_context_length": "original_max_position_embeddings",
    "rope.scaling.attn_factor": "attention_factor",
    "rope.scaling.finetuned": "finetuned",
}
#: As far as a factor is believed.
_LARGEST = 1e6
#: Read elsewhere: the two head sizes must equal head_dim, the vocabulary's size is the embedding's.
_CHECKED = {"attention.value_length", "rope.dimension_count", "vocab_size"}


def family_of(meta: dict[str, Any]) -> ModuleType:
    """Return the family of a file's metadata. Raises ValueError naming those supported."""
    arch = meta.get("general.architecture")
    if not isinstance(arch, str) or arch not in FAMILIES:
        raise ValueError(f"GGUF architecture {brief(arch)} is not supported; supported are {', '.join(FAMILIES)}")
    # a llama with a sliding window is a Mistral 7B v0.1
    return mistral if arch == "llama" and meta.get("llama.attention.sliding_window") else FAMILIES[arch]


def hf_config(meta: dict[str, Any], shapes: dict[str, tuple[int, ...]]) -> dict[str, Any]:
    """Return metadata as a config.json.

    Args:
        meta: all of the file's metadata.
        shapes: its tensors by Hugging Face's names, which tell what the metadata leaves out: the vocabulary, whether
            the head is tied, whether the output projection has a bias.

    Raises:
        ValueError: metadata of the architecture that is not honoured.
    """
    own = _own(meta)
    hf: dict[str, Any] = {new: _rounded(own[old]) for old, new in _FIELDS.items() if old in own}
    hf["rope_scaling"] = _scaling({new: _rounded(own[old]) for old, new in _SCALING.items() if old in own})
    hf["tie_word_embeddings"] = "lm_head.weight" not in shapes
    hf["vocab_size"] = next(iter(shapes.get("model.embed_tokens.weight", ())), None)
    family = family_of(meta)
    hf["architectures"] = [family.ARCHITECTURE]
    hf["model_type"] = family.ARCHITECTURE.removesuffix("ForCausalLM").lower()
    if family in (llama, qwen3):
        hf["attention_bias"] = "model.layers.0.self_attn.o_proj.bias" in shapes
    if family in (mistral, qwen2, qwen3):
        # no null in this format: absent is none, where in a config.json absent is the family's default
        hf.setdefault("sliding_window", None)
    if family in (qwen2, qwen3) and hf["sliding_window"] is not None:
        raise ValueError("a GGUF of Qwen does not say which layers slide; load the Hugging Face folder instead")
    _check_heads(own, hf)
    return hf


def _own(meta: dict[str, Any]) -> dict[str, Any]:
    prefix = meta["general.architecture"] + "."
    own = {name.removeprefix(prefix): value for name, value in meta.items() if name.startswith(prefix)}
    if unknown := sorted(own.keys() - _FIELDS.keys() - _SCALING.keys() - _CHECKED):
        raise ValueError(f"GGUF metadata that is not honoured: {one_line(', '.join(prefix + name for name in unknown))}")
    return own


def _scaling(given: dict[str, Any]) -> dict[str, Any] | None:
    """Return `rope_scaling` as llama.cpp means it.

    Without a type it is linear; without a factor, or with one of 0, the factor is 1. YaRN's attention factor is a multiple of
    0.1 ln(factor) + 1, not in its place; what it would do without YaRN is not honoured.
    """
    kind, attention = given.pop("rope_type", "linear"), given.pop("attention_factor", 1.0)
    factor = number("rope.scaling.factor", given.get("factor") or 1.0, most=_LARGEST)
    if kind == "yarn":
        scale = number("rope.scaling.attn_factor", attention, most=_LARGEST) * yarn_scale(factor)
        return {**given, "rope_type": kind, "factor": factor, "attention_factor": scale}
    if attention != 1:
        raise ValueError(f"GGUF metadata rope.scaling.attn_factor = {brief(attention)} is honoured with YaRN only")
    if kind == "none" or (kind == "linear" and factor == 1):
        return None
    return {"rope_type": kind, "factor": factor}


def _check_heads(own: dict[str, Any], hf: dict[str, Any]) -> None:
    width, heads = hf.get("hidden_size"), hf.get("num_attention_heads")
    # absent it is as in llama.cpp, whatever the family's default in a config.json
    hf.setdefault("num_key_value_heads", heads)
    if "head_dim" not in hf and isinstance(width, int) and isinstance(heads, int) and heads > 0:
        hf["head_dim"] = width // heads
    dim = hf.get("head_dim")  # where it is not told here either, the family says what is missing
    for name in ("attention.value_length", "rope.dimension_count"):
        if own.get(name, dim) != dim:
            raise ValueError(f"GGUF metadata {name} = {brief(own[name])} must equal the head dimension {dim}")


def _rounded(value: Any) -> Any:
    # floats are stored as float32: 9.99999974e-06 was written as 1e-05
    return float(f"{value:.7g}") if isinstance(value, float) else value
