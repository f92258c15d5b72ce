"""What a generated task is asked for and what it writes: a request for one prompt, and drafts of it of every size."""

import math
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import cycle, islice
from typing import Any


@dataclass(frozen=True)
class Request:
    """One prompt asked for: prompt `index` of `seed`, `length` tokens with its answer, filler from the ids `haystack`."""

    lm: Any
    length: int
    seed: int
    index: int
    haystack: Sequence[int]

    def draw(self, task: str) -> random.Random:
        """The task's source of chance, from its beginning at every call."""
        return random.Random(f"{self.seed}/{task}/{self.length}/{self.index}")

    def essay(self, count: int) -> str:
        """The first `count` words of the haystack, one space between them; it starts again where it ends."""
        return " ".join(islice(cycle(self._words), count))

    @cached_property
    def _words(self) -> list[str]:
        ids = list(self.haystack[: 2 * self.length])
        words = self.lm.decode(ids).split()
        words = words[:-1] if len(ids) < len(self.haystack) else words  # the last may be cut in two
        if not words:
            raise ValueError("the haystack holds no words: give a longer --text")
        return words


@dataclass(frozen=True)
class Draft:
    """A prompt as text: what is compressed before the question is known, the question, the answer's opening, the answers."""

    context: str
    question: str
    prefix: str
    references: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Drafts:
    """All sizes of one prompt: `write(n)` has `n` units of filler, `least` <= n <= `most`; `scarce` says what limits it."""

    write: Callable[[int], Draft]
    least: int = 1
    most: float = math.inf
    scarce: str = ""
