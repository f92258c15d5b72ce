"""A needle in essays: one magic number hidden between two sentences, asked for at the end.

Wording: RULER, single needle in essays (Hsieh et al., 2024, "RULER: What's the Real Context Size of Your Long-Context
Language Models?", appendix B, niah_single_2). We differ: the key is drawn from 113 common nouns and the needle's depth
uniformly; the introduction speaks of several numbers; the number has five digits, RULER's has seven; the answer has to begin with
it and gets as many tokens as it takes, where RULER looks for it anywhere in 128 tokens (`niah_single_2` does so here).

Prompt i of a seed and length is the same tokens wherever it is made, given the same haystack:
`random.Random(f"{seed}/niah_essay/{length}/{i}")` draws key, number, stretch of text and depth, in that order.
"""

import random
from collections.abc import Iterator, Sequence
from typing import Any

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.example import Example
from experiments.tasks.words import WORDS

NAME = "needle"
MODES = ("unseen", "seen")
#: Tokens of the context set aside for the chat template's opening and the introduction.
OPENING = 60
INTRODUCTION = (
    "Some special magic numbers are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the numbers afterwards.\n\n"
)
SENTENCE_ENDS = (".", ".\n", "\n")


def examples(
    lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
) -> Iterator[Example]:
    """Prompts `start` .. `count - 1`.

    Args:
        lm: the language model: its tokenizer, chat template and context length.
        length: tokens of the context at most; it holds the introduction, the text and the needle.
        haystack: ids of the text to hide the needle in.
        mode: "unseen": compressed before the question is known; "seen": the question is compressed with the context.

    Raises:
        ValueError: unknown mode, a length too short for a needle or too long for the haystack or the model.
    """
    if mode not in MODES:
        raise ValueError(f"question mode {mode!r} is none of {', '.join(MODES)}")
    for index in range(start, count):
        yield _example(lm, length, index, seed, haystack=haystack, mode=mode)


def grade(answer: str, references: Sequence[str]) -> float:
    """1 if the answer begins with a space and the number."""
    return float(answer.startswith(" " + references[0]))


def _example(lm: Any, length: int, index: int, seed: int, *, haystack: Sequence[int], mode: str) -> Example:
    draw = random.Random(f"{seed}/niah_essay/{length}/{index}")
    key = draw.sample(WORDS, 64)[0]
    number = str(draw.randrange(10**4, 10**5))
    needle = encode_plain(lm, f" One of the special magic numbers for {key} is: {number}.")
    before, after = frame(lm)
    opening = encode_plain(lm, before + INTRODUCTION)
    room = length - max(OPENING, len(opening)) - len(needle)
    _check_room(length, room, len(haystack))
    begin = draw.randrange(0, len(haystack) - room - 1)
    depth = draw.random()
    text = _hide(lm, list(haystack[begin : begin + room]), needle, depth)
    words = f"pecial magic number for {key} mentioned in the provided text"
    return Example(
        task=NAME,
        mode=mode,
        length=length,
        index=index,
        context=tuple(opening + text),
        question=tuple(encode_plain(lm, f"\n\nWhat is the s{words}?")),
        prefix=tuple(encode_plain(lm, f"{after}The s{words} is")),
        references=(number,),
        new_tokens=len(encode_plain(lm, " " + number)),
        meta={"depth": depth, "key": key, "number": number},
    )


def _hide(lm: Any, text: list[int], needle: list[int], depth: float) -> list[int]:
    """Put the needle after the last sentence that ends before `depth`, or at `depth` where none does."""
    at = wanted = int(depth * len(text))
    while at > 0 and not lm.decode([text[at - 1]]).rstrip(" ").endswith(SENTENCE_ENDS):
        at -= 1
    at = at or wanted
    return text[:at] + needle + text[at:]


def _check_room(length: int, room: int, available: int) -> None:
    if room < 1:
        raise ValueError(f"length {length} is too short for a needle: {1 - room} more tokens are needed")
    if available < room + 2:
        raise ValueError(f"the haystack has {available} tokens, too few for a prompt of {length}: give a longer --text")
