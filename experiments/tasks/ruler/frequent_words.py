"""RULER's frequent words extraction (fwe): the three most frequent of made-up words that follow a zeta distribution.

    count of rank k = floor(n k^-alpha / zeta(alpha)), alpha = 2; the first rank is written as dots and does not count

Source: Hsieh et al., 2024, "RULER", section 3.3; scripts/data/synthetic/freq_words_extraction.py of the benchmark, whose
wording is kept: words of six letters, one distinct word for every 50 tokens of the prompt.
We differ: n is the largest that fits, where the benchmark searches in steps of 1/32 of the length.
"""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from math import pi
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.match import string_match_all

INTRODUCTION = (
    "Read the following coded text and track the frequency of each coded word. "
    "Find the three most frequently appeared coded words. "
)
QUESTION = (
    "\nQuestion: Do not provide any explanation. Please ignore the dots '....'. "
    "What are the three most frequently appeared words in the above coded text?"
)
PREFIX = " Answer: According to the coded text above, the three most frequently appeared words are:"
ZETA_2 = pi**2 / 6
#: Below this n the fourth and the fifth rank come equally often: floor(n/(16 zeta(2))) = floor(n/(25 zeta(2))).
LEAST = 53


@dataclass(frozen=True)
class FrequentWords(Generated):
    """The three most frequent coded words; the amount of filler is the n above, in words."""

    NAME: str
    new_tokens: ClassVar[int] = 50

    def drafts(self, request: Request) -> Drafts:
        distinct = max(5, (request.length - self.new_tokens) // 50)
        return Drafts(partial(self._write, request, distinct), least=LEAST)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Share of the three words that the answer contains."""
        return string_match_all(answer, references)

    def _write(self, request: Request, distinct: int, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        words = ["...", *coded(draw, distinct - 1)]
        text = [word for word, count in zip(words, zeta_counts(amount, distinct), strict=True) for _ in range(count)]
        draw.shuffle(text)
        return Draft(INTRODUCTION + " ".join(text), QUESTION, PREFIX, tuple(words[1:4]))


def zeta_counts(amount: int, ranks: int) -> list[int]:
    """How often each rank comes in a text of about `amount` words."""
    return [int(amount / (k * k * ZETA_2)) for k in range(1, ranks + 1)]


def coded(draw: random.Random, count: int) -> list[str]:
    """Words of six small letters, each once."""
    words: dict[str, None] = {}
    while len(words) < count:
        words["".join(draw.choices(string.ascii_lowercase, k=6))] = None
    return list(words)
