"""Splitting a model's chat template around a user turn, so that prompts can be built from ids and cut anywhere."""

from collections.abc import Sequence
from typing import Any

#: Stands for the user's words while the template is split; no template contains it.
MARK = "<<user words>>"


def encode_plain(lm: Any, text: str) -> list[int]:
    """Ids of `text` without any token of the tokenizer's own at its ends."""
    return list(lm.tokenizer.inner(text, add_special_tokens=False, verbose=False).input_ids)


def frame(lm: Any) -> tuple[str, str]:
    """Text before and after a user turn, up to where the answer begins; (BOS, newline) without a template."""
    if not lm.tokenizer.inner.chat_template:
        return lm.tokenizer.inner.bos_token or "", "\n"
    turn = [{"role": "user", "content": MARK}]
    text = lm.tokenizer.inner.apply_chat_template(turn, add_generation_prompt=True, tokenize=False)
    head, found, tail = text.partition(MARK)
    if not found:
        raise ValueError(f"the chat template of {lm.name!r} does not repeat the user's words as they are")
    return head, tail


def continuation(lm: Any, before: Sequence[int], after: Sequence[int]) -> str:
    """Text that `after` adds to `before`; a tokenizer may drop a leading space when it decodes `after` alone."""
    return lm.decode([*before, *after])[len(lm.decode(list(before))) :]
