"""Ids of a text that stands inside another."""

from kvjax.protocols import LanguageModel


def ids_inside(lm: LanguageModel, text: str) -> list[int]:
    """Ids of a text by the model's tokenizer, without what that puts before and behind every text."""
    ids, around = lm.encode(text), lm.encode("")
    for before in range(len(around), -1, -1):
        end = len(ids) - (len(around) - before)
        if ids[:before] == around[:before] and ids[end:] == around[before:]:
            return ids[before:end]
    return ids
