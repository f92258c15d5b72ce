"""Text to ids and back, through transformers (no torch; imported when first needed, since that takes a second)."""

import os
from pathlib import Path
from types import ModuleType
from typing import Any

from models.files import read_json, regular
from models.numbers import one_line, whole

Chat = list[dict[str, str]]

_FILES = ("tokenizer.json", "tokenizer.model", "vocab.json")
#: What transformers reads with them, where it is there.
_BESIDE = ("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "merges.txt", "chat_template.jinja")


class Tokenizer:
    """A transformers tokenizer with its chat template and stop ids; compared by identity, so a static leaf.

    Attributes:
        inner: the transformers tokenizer.
        stop_ids: ids that end an answer: all end-of-sequence ids of the generation config, config and tokenizer.
    """

    def __init__(self, inner: Any, stop_ids: tuple[int, ...] = ()) -> None:
        own = () if inner.eos_token_id is None else (inner.eos_token_id,)
        self.inner, self.stop_ids = inner, tuple(dict.fromkeys((*stop_ids, *own)))

    def encode(self, text: str | Chat, *, add_special_tokens: bool = True) -> list[int]:
        """Return ids: of a string with the tokenizer's own rule for special tokens, of a chat through its template.

        A chat ends with the template's opening of the assistant's turn.

        Args:
            add_special_tokens: False for a string that goes on from a text that was read: many tokenizers (Llama's, Mistral's)
                put an opening token before every other.

        Raises:
            ValueError: no chat template, or one that fails; no list of {"role", "content"}; text that is no Unicode; a chat
                without its template's special tokens.
        """
        if isinstance(text, str):
            return list(self.inner(_unicode(text), add_special_tokens=add_special_tokens).input_ids)
        if not add_special_tokens:
            raise ValueError("a chat has the special tokens of its template: pass a string, or leave add_special_tokens=True")
        if not all(isinstance(turn, dict) and "role" in turn and "content" in turn for turn in text):
            raise ValueError(f'expected a string or a chat [{{"role": ..., "content": ...}}, ...], got {text!r}')
        if not text:
            return []
        if self.inner.chat_template is None:
            raise ValueError("this tokenizer has no chat template; pass a string, or load an instruct model")
        # the template writes the special tokens itself: encoding with them would double the first
        return list(self.inner(_unicode(self._written(text)), add_special_tokens=False).input_ids)

    def _written(self, chat: Chat) -> str:
        try:
            return self.inner.apply_chat_template(chat, add_generation_prompt=True, tokenize=False)
        except Exception as error:  # a template is a program: it may fail in any way, or refuse the chat
            raise ValueError(f"the tokenizer's chat template cannot write this chat ({_reason(error)}); pass a string") from error

    def decode(self, ids: Any) -> str:
        """Return the text of ids, special tokens included."""
        return self.inner.decode([int(i) for i in ids], skip_special_tokens=False)


def from_folder(folder: Path, *configs: dict[str, Any]) -> Tokenizer | None:
    """Return the tokenizer of a folder, None where it holds none; `configs` are searched for eos_token_id."""
    there = {name for name in (*_FILES, *_BESIDE) if regular(folder / name).is_file()}
    if not there & set(_FILES):
        return None
    hf = transformers()
    # tokenizer.json is complete: a class that a config names may rebuild parts of it from its own defaults
    kind = hf.PreTrainedTokenizerFast if "tokenizer.json" in there else hf.AutoTokenizer
    stop = stop_ids_of(*configs)
    try:
        found = Tokenizer(kind.from_pretrained(str(folder)), stop)
        found.encode("a setting that breaks every call is to be met here")
        return found
    except ImportError:  # some kinds need a package more, and say which
        raise
    except Exception as error:  # of a damaged file transformers and tokenizers raise whatever they meet
        advice = "download its tokenizer files again"
        raise ValueError(f"{folder}: its tokenizer cannot be read ({_reason(error)}); {advice}") from error


def _unicode(text: str) -> str:
    """`text`, once it is seen to be text: half of a surrogate pair is a character to Python, but to no tokenizer."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what, where = text[error.start], error.start
        raise ValueError(f"the text holds half of a surrogate pair ({what!a}) at character {where}: remove it") from error
    return text


def _reason(error: Exception) -> str:
    """What an error of another library says, on one line."""
    return f"{type(error).__name__}: {one_line(error)}"


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
    """Return every eos_token_id (an int or a list) of the given configs, in order, each once. Raises ValueError for others."""
    found: dict[int, None] = {}
    for config in configs:
        value = config.get("eos_token_id")
        ids = value if isinstance(value, list) else [] if value is None else [value]
        found.update((whole("eos_token_id", one, least=0), None) for one in ids)
    return tuple(found)


def generation_config(folder: Path) -> dict[str, Any]:
    """Return generation_config.json, empty where there is none. Raises as `read_json`."""
    path = regular(folder / "generation_config.json")
    return read_json(path) if path.is_file() else {}
