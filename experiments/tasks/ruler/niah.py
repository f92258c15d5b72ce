"""RULER's eight needle tasks: keys with values hidden in a haystack, some of the keys asked for.

Source: Hsieh et al., 2024, "RULER", section 3 and table 5; scripts/data/synthetic/niah.py and constants.py of the
benchmark, whose wording is kept. Where keys, words and haystacks differ: `kinds.py`, `haystacks.py`.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.haystacks import Haystack, Source
from experiments.tasks.ruler.kinds import NUMBERS, WORDS, Kind
from experiments.tasks.ruler.match import string_match_all

NEEDLE = "One of the special magic {kind} for {key} is: {value}."
#: Introduction, question and opening of the answer where one value is asked for.
ONE = (
    "A special magic {kind} is hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "\nWhat is the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text is",
)
#: The same where several are.
MANY = (
    "Some special magic {kind} are hidden within the following text. Make sure to memorize it. "
    "I will quiz you about the {kind} afterwards.\n",
    "\nWhat are all the special magic {kind} for {query} mentioned in the provided text?",
    " The special magic {kind} for {query} mentioned in the provided text are",
)


@dataclass(frozen=True)
class Niah(Generated):
    """A needle task.

    Attributes:
        haystack: Noise(), Essay() or Needles().
        keys, values: the kinds of either.
        n_keys, n_values, n_queries: keys hidden (at least as many as are asked for), values of each, keys asked for.
    """

    NAME: str
    haystack: Haystack
    keys: Kind = WORDS
    values: Kind = NUMBERS
    n_keys: int = 1
    n_values: int = 1
    n_queries: int = 1
    new_tokens: ClassVar[int] = 128

    def drafts(self, request: Request) -> Drafts:
        count = max(self.n_keys, self.n_queries) * self.n_values
        return Drafts(partial(self._write, request), least=self.haystack.least(count))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Share of the values that the answer contains."""
        return string_match_all(answer, references)

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        keys, values = self.keys.distinct(draw), self.values.distinct(draw)
        hidden = self._hidden(keys, values)
        asked = draw.sample(list(hidden), self.n_queries)
        needles = [self._needle(key, value) for key, found in hidden.items() for value in found]
        draw.shuffle(needles)
        source = Source(request, lambda: self._needle(next(keys), next(values)))
        text = self.haystack.hide(needles, amount, draw, source)
        return self._draft(text, asked, tuple(value for key in asked for value in hidden[key]))

    def _hidden(self, keys: Iterator[str], values: Iterator[str]) -> dict[str, list[str]]:
        count = max(self.n_keys, self.n_queries)
        return {next(keys): [next(values) for _ in range(self.n_values)] for _ in range(count)}

    def _needle(self, key: str, value: str) -> str:
        return NEEDLE.format(kind=self.values.plural, key=key, value=value)

    def _draft(self, text: str, asked: Sequence[str], references: tuple[str, ...]) -> Draft:
        one = len(references) == 1
        words = {"kind": self.values.plural[:-1] if one else self.values.plural, "query": listed(asked)}
        introduction, question, prefix = (part.format(**words) for part in (ONE if one else MANY))
        return Draft(introduction + text, question, prefix, references)


def listed(keys: Sequence[str]) -> str:
    """`a`, or `a, b, and c`."""
    return ", and ".join([", ".join(keys[:-1]), keys[-1]]) if len(keys) > 1 else keys[0]
