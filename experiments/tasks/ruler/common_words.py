"""RULER's common words extraction (cwe): the ten words of a numbered list that come ten times as often as the others.

Source: Hsieh et al., 2024, "RULER", section 3.3; scripts/data/synthetic/common_words_extraction.py of the benchmark,
whose wording is kept: ten words 30 times and all others 3 times after a worked example of 40 words (10 and 3 times);
below 4096 tokens 6 times and once after an example of 20 words (3 times and once).
We differ: words are this project's nouns and the lower-case words of three to twelve letters in the haystack, where the
benchmark takes the lists of the package wonderwords; the worked example stands within the user's turn.
"""

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.match import string_match_all
from experiments.tasks.words import WORDS

INTRODUCTION = (
    "Below is a numbered list of words. In these words, some appear more often than others. "
    "Memorize the ones that appear most often.\n"
)
QUESTION = "\nQuestion: What are the 10 most common words in the above list?"
PREFIX = " Answer: The top 10 words that appear most often in the list are:"
COMMON = 10


@dataclass(frozen=True)
class Counts:
    """How often common and other words come, in the list and in the worked example, and words of the example."""

    common: int
    other: int
    example_common: int
    example_other: int
    example_words: int


LONG, SHORT = Counts(30, 3, 10, 3, 40), Counts(6, 1, 3, 1, 20)


@dataclass(frozen=True)
class CommonWords(Generated):
    """Ten common words among others; the amount of filler is the number of distinct words."""

    NAME: str
    new_tokens: ClassVar[int] = 120

    def drafts(self, request: Request) -> Drafts:
        words = vocabulary(request.lm.decode(list(request.haystack)))
        counts = LONG if request.length >= 4096 else SHORT
        scarce = f"the haystack and the nouns have only {len(words)} different words: give a longer --text"
        return Drafts(partial(self._write, request, words, counts), least=COMMON + 1, most=len(words), scarce=scarce)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Share of the ten words that the answer contains."""
        return string_match_all(answer, references)

    def _write(self, request: Request, words: Sequence[str], counts: Counts, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        shown = draw.sample(words, min(counts.example_words, len(words)))
        example = INTRODUCTION + numbered(draw, shown, counts.example_common, counts.example_other) + QUESTION + PREFIX
        solved = f"{example} {' '.join(f'{i}. {word}' for i, word in enumerate(shown[:COMMON], 1))}\n"
        listed = draw.sample(words, amount)
        text = numbered(draw, listed, counts.common, counts.other)
        return Draft(solved + INTRODUCTION + text, QUESTION, PREFIX, tuple(listed[:COMMON]))


def numbered(draw: random.Random, words: Sequence[str], common: int, other: int) -> str:
    """`1. word 2. word ...`: the first ten `common` times each, the others `other` times, shuffled."""
    every = list(words[:COMMON]) * common + list(words[COMMON:]) * other
    draw.shuffle(every)
    return " ".join(f"{i}. {word}" for i, word in enumerate(every, 1))


def vocabulary(text: str) -> list[str]:
    """The nouns and the lower-case words of three to twelve letters in `text`, sorted."""
    return sorted({*WORDS, *re.findall(r"\b[a-z]{3,12}\b", text)})
