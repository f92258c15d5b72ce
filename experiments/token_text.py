"""Tokens -> the text that they add; a character whose bytes come in several tokens is one piece of them all."""

from collections.abc import Iterable, Iterator

from kvjax.protocols import LanguageModel

#: Tokens that are waited for at most; text that stays broken beyond them is no character cut in two.
MOST = 16


def pieces(lm: LanguageModel, tokens: Iterable[int]) -> Iterator[tuple[str, int]]:
    """(text, tokens it took), as tokens add to it; a character whose bytes have not all come is held back until they have.

    Only the tail since the last whole character is decoded again, so the cost of a token does not grow with the text.

        "é" in tokens of one byte  ->  ("é", 2)
    """
    tail: list[int] = []
    shown, before = "", 0
    for token in tokens:
        tail.append(token)
        text = lm.decode(tail)
        if text.endswith("\ufffd") and len(tail) - before < MOST:
            continue
        yield text[len(shown) :], len(tail) - before
        # one token of context stays, because some tokenizers drop the space of the first
        tail = tail[-1:]
        shown, before = lm.decode(tail), 1
    if len(tail) > before:
        yield lm.decode(tail)[len(shown) :], len(tail) - before
