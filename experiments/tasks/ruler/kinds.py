"""What RULER files needles under and hides in them: numbers, words and uuids (scripts/data/synthetic/niah.py).

We differ: words are pairs of this project's 113 nouns where the benchmark pairs adjectives and nouns of the package
wonderwords, and what is drawn for one prompt is distinct where the benchmark leaves that to chance.
"""

import random
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from experiments.tasks.words import WORDS as NOUNS


@dataclass(frozen=True)
class Kind:
    """A kind of key or value: its name in the plural, as the prompts have it, and how one is drawn."""

    plural: str
    make: Callable[[random.Random], str]

    def distinct(self, draw: random.Random) -> Iterator[str]:
        """Drawn one by one, none twice."""
        seen: set[str] = set()
        while True:
            made = self.make(draw)
            if made not in seen:
                seen.add(made)
                yield made


def number(draw: random.Random) -> str:
    """Seven digits, the first not 0."""
    return str(draw.randrange(10**6, 10**7))


def word(draw: random.Random) -> str:
    """Two nouns and a hyphen."""
    return "-".join(draw.sample(NOUNS, 2))


def identifier(draw: random.Random) -> str:
    """A random UUID, version 4."""
    return str(uuid.UUID(int=draw.getrandbits(128), version=4))


NUMBERS, WORDS, UUIDS = Kind("numbers", number), Kind("words", word), Kind("uuids", identifier)
