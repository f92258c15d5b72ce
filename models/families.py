"""The four families, found by the architecture a config.json names."""

from types import ModuleType
from typing import Any

from kvjax.checks import brief
from models import llama, mistral, qwen2, qwen3

FAMILIES: dict[str, ModuleType] = {family.ARCHITECTURE: family for family in (llama, mistral, qwen2, qwen3)}


def family_of(hf: dict[str, Any]) -> ModuleType:
    """Return the family module for `architectures` (or, where absent, `model_type`). Raises ValueError."""
    names = hf.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"architectures: expected a list of names such as {[*FAMILIES][:1]}, got {brief(names)}")
    by_type = {name.removesuffix("ForCausalLM").lower(): name for name in FAMILIES}
    name = names[0] if names else by_type.get(str(hf.get("model_type")))
    if name not in FAMILIES:
        got = f"architectures {brief(names)}, model_type {brief(hf.get('model_type'))}"
        raise ValueError(f"unsupported model: {got}. Supported are {', '.join(FAMILIES)}; load one of these.")
    return FAMILIES[name]
