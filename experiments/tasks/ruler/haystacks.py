"""Where RULER hides needles: noise, essays or other needles (scripts/data/synthetic/niah.py, variable_tracking.py).

We differ: the last line of noise may end after any of its five sentences, so that prompts come closer to their length;
sentences of essays end at . ! or ? where the benchmark asks NLTK's punkt.
"""

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from experiments.tasks.draft import Request
from experiments.tasks.essays import between, sentences

NOISE = ("The grass is green.", "The sky is blue.", "The sun is yellow.", "Here we go.", "There and back again.")
#: The share of the sentences, in percent, that can stand before a needle: 40 from 0 to 100, rounded to even.
DEPTHS = tuple(round(100 * i / 39) for i in range(40))


@dataclass(frozen=True)
class Source:
    """What fills a haystack: the prompt asked for, with its essay, and a maker of other needles."""

    request: Request
    another: Callable[[], str]


class Haystack(Protocol):
    """Filler of any amount with needles in it."""

    def least(self, needles: int) -> int: ...
    def hide(self, needles: Sequence[str], amount: int, draw: random.Random, source: Source) -> str: ...


def noise(amount: int) -> list[str]:
    """Lines of five sentences, `amount` sentences in all; the last line may have fewer."""
    whole, rest = divmod(amount, len(NOISE))
    return [" ".join(NOISE)] * whole + ([" ".join(NOISE[:rest])] if rest else [])


@dataclass(frozen=True)
class Noise:
    """The same five sentences on every line, needles on lines of their own; amounts are sentences."""

    def least(self, needles: int) -> int:
        return len(NOISE) * needles

    def hide(self, needles: Sequence[str], amount: int, draw: random.Random, source: Source) -> str:
        del source
        return _among(noise(amount), needles, draw)


@dataclass(frozen=True)
class Essay:
    """The haystack's beginning, needles between its sentences at distinct depths out of 40; amounts are words."""

    def least(self, needles: int) -> int:
        return needles

    def hide(self, needles: Sequence[str], amount: int, draw: random.Random, source: Source) -> str:
        parts = sentences(source.request.essay(amount))
        depths = sorted(draw.sample(DEPTHS, len(needles)))
        return between(parts, needles, [int(len(parts) * depth / 100) for depth in depths])


@dataclass(frozen=True)
class Needles:
    """Lines that look like needles, with keys and values of their own; amounts are lines."""

    def least(self, needles: int) -> int:
        return needles

    def hide(self, needles: Sequence[str], amount: int, draw: random.Random, source: Source) -> str:
        return _among([source.another() for _ in range(amount)], needles, draw)


def _among(lines: list[str], needles: Sequence[str], draw: random.Random) -> str:
    """Each needle before a line of its own, the first needle before the last of those lines."""
    for at, needle in zip(sorted(draw.sample(range(len(lines)), len(needles)), reverse=True), needles, strict=True):
        lines.insert(at, needle)
    return "\n".join(lines)
