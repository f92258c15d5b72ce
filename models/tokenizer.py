"""Text to ids and back, through transformers (no torch; imported when first needed, since that takes a second)."""

import json
import os
from pathlib import Path
from types import ModuleType
from typing import Any

Chat = list[dict[str, str]]

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")


class Tokenizer:
    """A transformers tokenizer with its chat template and stop ids; compared by identity, so a static leaf.

    Attributes:
        inner: the transformers tokenizer.
        stop_ids: ids that end an answer: all end-of-sequence ids of the generation config, config and tokenizer.
    """

    def __init__(self, inner: Any, stop_ids: tuple[int, ...] = ()) -> None:
        own = () if inner.eos_token_id is None else (inner.eos_token_id,)
        self.inner, self.stop_ids = inner, tuple(dict.fromkeys((*stop_ids, *own)))

    def encode(self, text: str | Chat) -> list[int]:
        """Return ids: of a string with the tokenizer's own rule for special tokens, of a chat through its template.

        A chat ends with the template's opening of the assistant's turn. Raises ValueError where there is no template
        or the chat is not a list of {"role", "content"}.
        """
        if isinstance(text, str):
            return list(self.inner(text).input_ids)
        if not all(isinstance(turn, dict) and "role" in turn and "content" in turn for turn in text):
            raise ValueError(f'expected a string or a chat [{{"role": ..., "content": ...}}, ...], got {text!r}')
        if not text:
            return []
        if self.inner.chat_template is None:
            raise ValueError("this tokenizer has no chat template; pass a string, or load an instruct model")
        # the template writes the special tokens itself: encoding with them would double the first
        written = self.inner.apply_chat_template(text, add_generation_prompt=True, tokenize=False)
        return list(self.inner(written, add_special_tokens=False).input_ids)

    def decode(self, ids: Any) -> str:
        """Return the text of ids, special tokens included."""
        return self.inner.decode([int(i) for i in ids], skip_special_tokens=False)


def from_folder(folder: Path, *configs: dict[str, Any]) -> Tokenizer | None:
    """Return the tokenizer of a folder, None where it holds none; `configs` are searched for eos_token_id."""
    if not any((folder / name).is_file() for name in _FILES):
        return None
    hf = transformers()
    # tokenizer.json is complete: a class that a config names may rebuild parts of it from its own defaults
    kind = hf.PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else hf.AutoTokenizer
    return Tokenizer(kind.from_pretrained(str(folder)), stop_ids_of(*configs))


def transformers() -> ModuleType:
    """Return the transformers package, imported without its advice to install torch, which nothing here needs."""
    key = "TRANSFORMERS_NO_ADVISORY_WARNINGS"
    before = os.environ.get(key)
    os.environ[key] = "1"
    try:
        import transformers as package
    finally:
        os.environ.pop(key) if before is None else os.environ.update({key: before})
    return package


def stop_ids_of(*configs: dict[str, Any]) -> tuple[int, ...]:
    """Return every eos_token_id (an int or a list) of the given configs, in order, each once."""
    found: dict[int, None] = {}
    for config in configs:
        value = config.get("eos_token_id")
        found.update(dict.fromkeys(value if isinstance(value, list) else [] if value is None else [value]))
    return tuple(found)


def generation_config(folder: Path) -> dict[str, Any]:
    """Return generation_config.json, empty where there is none."""
    path = folder / "generation_config.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
