"""RULER's variable tracking (vt): a chain of assignments in noise; which variables hold the value?

Source: Hsieh et al., 2024, "RULER", section 3.2; scripts/data/synthetic/variable_tracking.py of the benchmark, whose
wording is kept: one chain of four hops after a worked example of at most 500 tokens with names of three letters.
We differ: the example has at least five lines of noise and grows by sentences, as the prompt does (`haystacks.py`).
"""

import random
import string
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.tasks.chat import encode_plain
from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated, largest
from experiments.tasks.ruler.haystacks import NOISE, noise
from experiments.tasks.ruler.match import string_match_all

INTRODUCTION = "Memorize and track the chain(s) of variable assignment hidden in the following text.\n\n"
QUESTION = "\nQuestion: Find all variables that are assigned the value {value} in the text above."
PREFIX = (
    " Answer: According to the chain(s) of variable assignment in the text above, {count} variables are assigned "
    "the value {value}, they are: "
)
EXAMPLE_TOKENS = 500


@dataclass(frozen=True)
class VariableTracking(Generated):
    """`chains` chains of `hops` hops each; the first chain's value is asked for."""

    NAME: str
    chains: int = 1
    hops: int = 4
    new_tokens: ClassVar[int] = 30

    def drafts(self, request: Request) -> Drafts:
        least = len(NOISE) * (self.hops + 1)
        return Drafts(partial(self._write, request, self._example(request, least)), least=least)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Share of the variables that the answer contains."""
        return string_match_all(answer, references)

    def _example(self, request: Request, least: int) -> str:
        """One solved prompt, as long as fits into 500 tokens."""

        def write(amount: int) -> str:
            return self._solved(request.draw(f"{self.NAME}/example"), amount)

        def fits(amount: int) -> bool:
            return len(encode_plain(request.lm, write(amount))) <= EXAMPLE_TOKENS

        return write(largest(fits, least) if fits(least) else least)

    def _solved(self, draw: random.Random, amount: int) -> str:
        draft = self._prompt(draw, amount, letters=3, chains=1)
        return f"{draft.context}{draft.question}{draft.prefix} {' '.join(draft.references)}\n"

    def _write(self, request: Request, example: str, amount: int) -> Draft:
        draft = self._prompt(request.draw(self.NAME), amount, letters=5, chains=self.chains)
        return Draft(f"{example}\n{draft.context}", draft.question, draft.prefix, draft.references)

    def _prompt(self, draw: random.Random, amount: int, *, letters: int, chains: int) -> Draft:
        names = distinct(draw, letters, chains * (self.hops + 1))
        groups = [names[i::chains] for i in range(chains)]
        values = draw.sample(range(10_000, 99_999), chains)
        lines = noise(amount)
        for group, value in zip(groups, values, strict=True):
            lines = among(lines, assignments(group, value), draw)
        words = {"value": values[0], "count": self.hops + 1}
        return Draft(INTRODUCTION + "\n".join(lines), QUESTION.format(**words), PREFIX.format(**words), tuple(groups[0]))


def assignments(names: Sequence[str], value: int) -> list[str]:
    """`VAR A = 12345`, then `VAR B = VAR A ` and so on; the benchmark's lines end in a space."""
    hops = [f"VAR {name} = VAR {before} " for before, name in zip(names, names[1:], strict=False)]
    return [f"VAR {names[0]} = {value}", *hops]


def among(lines: Sequence[str], chain: Sequence[str], draw: random.Random) -> list[str]:
    """The chain's assignments in their order, each before a line of its own."""
    places = dict(zip(sorted(draw.sample(range(len(lines)), len(chain))), chain, strict=True))
    return [text for at, line in enumerate(lines) for text in ([places[at]] if at in places else []) + [line]]


def distinct(draw: random.Random, letters: int, count: int) -> list[str]:
    """Names of capital letters, each once."""
    names: dict[str, None] = {}
    while len(names) < count:
        names["".join(draw.choices(string.ascii_uppercase, k=letters))] = None
    return list(names)
