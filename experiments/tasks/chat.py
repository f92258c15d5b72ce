"""Splitting a model's chat template around a user turn, so that prompts can be built from ids and cut anywhere."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

#: Stands for the user's words while the template is split; no template contains it.
MARK = "<<user words>>"
#: What templates that write the day of today (Llama 3.2's) are told, so that prompts are the same on all days: Llama 3.1's default.
DAY = datetime(2024, 7, 26)


def encode_plain(lm: Any, text: str) -> list[int]:
    """Ids of `text` without any token of the tokenizer's own at its ends."""
    return list(lm.tokenizer.inner(text, add_special_tokens=False, verbose=False).input_ids)


def frame(lm: Any, *, thinking: bool = False) -> tuple[str, str]:
    """Text before and after a user turn, up to where the answer begins; (BOS, newline) without a template.

    `thinking` as in `written`.
    """
    if not lm.tokenizer.inner.chat_template:
        return lm.tokenizer.inner.bos_token or "", "\n"
    head, found, tail = written(lm, [{"role": "user", "content": MARK}], thinking=thinking).partition(MARK)
    if not found:
        raise ValueError(f"the chat template of {lm.name!r} does not repeat the user's words as they are")
    return head, tail


def written(lm: Any, turns: Sequence[Mapping[str, str]], *, thinking: bool = False) -> str:
    """The turns in the model's chat template, up to where its answer begins.

    Templates that can (Qwen3's) are asked to leave thinking out: thoughts would take the few tokens that a task has for its
    answer. Others ignore the wish. With `thinking` nothing is asked: the template does what it does by itself. Today is `DAY`.
    """
    inner, how = lm.tokenizer.inner, {} if thinking else {"enable_thinking": False}
    template = dated(inner.get_chat_template())
    return inner.apply_chat_template(list(turns), chat_template=template, add_generation_prompt=True, tokenize=False, **how)


def dated(template: str) -> str:
    """A template that asks for the time with the time's letters read as those of `DAY`; any other as it is.

    transformers gives a template its clock and takes no other: a macro of the clock's name stands before it.
    """
    if "strftime_now" not in template:
        return template
    letters = "".join(f"|replace('%{x}', '{DAY.strftime('%' + x)}')" for x in "aAbBdHIjmMpSyY")
    return "{% macro strftime_now(format) %}{{ format" + letters + " }}{% endmacro %}" + template


def continuation(lm: Any, before: Sequence[int], after: Sequence[int]) -> str:
    """Text that `after` adds to `before`; a tokenizer may drop a leading space when it decodes `after` alone."""
    return lm.decode([*before, *after])[len(lm.decode(list(before))) :]
