"""Countdown with numbers of our own: combine four numbers to reach a target, the search written down try by try.

    score = [the three equations of the answer solve it];  search_tries: operations that the answer tries

The rules and a worked search are compressed, the numbers follow; answers are long, so what is dropped while decoding matters.
Source: Ye et al., 2025, "LongProc", section 3 (the search, its wording and the worked examples; `countdown_search`); graded as
there. We differ: the rules are in our words; instances are drawn, each solvable within 16 tries. Instance i of a seed is drawn
by `random.Random(f"{seed}/countdown/{i}")`, whatever the length.
"""

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.countdown_search import Search, search
from experiments.tasks.datasets.longproc.countdown import SHOWN, graded
from experiments.tasks.example import Example
from experiments.tasks.generated import MODES, check_mode

RULES = (
    "Reach a target from four numbers: combine two of them by +, -, * or / until one is left. Every number is used once. Results "
    "are whole, not negative and below 2000. Search as in the example: take pairs in order, the larger number first, write down "
    "every try, and put the three equations that reach the target between <Solution> and </Solution>.\n\n"
)
OPENING = "# Search Procedure\n"


@dataclass(frozen=True)
class Countdown:
    """Instances of numbers from 1 to `largest` that the search solves within `tries` tries."""

    NAME: str = "countdown"
    MODES: tuple[str, ...] = MODES
    largest: int = 50
    tries: int = 16
    new_tokens: ClassVar[int] = 1536

    def examples(
        self, lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
    ) -> Iterator[Example]:
        """Prompts `start` .. `count - 1`, with as many worked searches (one or two) as fit into `length`.

        Raises:
            ValueError: unknown mode, or a length too short for one worked search.
        """
        del haystack
        check_mode(mode)
        before, after = frame(lm)
        contexts = [encode_plain(lm, before + RULES + "".join(map(_shown, SHOWN[:shots]))) for shots in (1, 2)]
        if len(contexts[0]) > length:
            raise ValueError(f"length {length} is too short for {self.NAME}: rules and an example need {len(contexts[0])} tokens")
        context = contexts[len(contexts[1]) <= length]
        for index in range(start, count):
            numbers, target, found = self.drawn(random.Random(f"{seed}/{self.NAME}/{index}"))
            yield Example(
                task=self.NAME,
                mode=mode,
                length=length,
                index=index,
                context=tuple(context),
                question=tuple(encode_plain(lm, f"# Problem\nNumbers: {numbers}\nTarget: {target}\n")),
                prefix=tuple(encode_plain(lm, after + OPENING)),
                references=(found.demonstration, json.dumps([numbers, target])),
                new_tokens=self.new_tokens,
                stop=tuple(lm.stop_ids),
                meta={"tries": found.tries},
            )

    def drawn(self, draw: random.Random) -> tuple[list[int], int, Search]:
        """Numbers, target and the search that reaches it."""
        while True:
            numbers, target = [draw.randint(1, self.largest) for _ in range(4)], draw.randint(10, 100)
            found = search(numbers, target)
            if found and found.tries <= self.tries:
                return numbers, target, found

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the answer's equations solve the instance."""
        return graded(OPENING + answer, references)["score"]

    def also(self, answer: str, references: Sequence[str]) -> dict[str, float]:
        """How far the answer repeats the search, whether it has a solution, and how many operations it tries."""
        figures = graded(OPENING + answer, references)
        return {name: figures[name] for name in ("partial_accuracy", "extraction_rate")} | {"search_tries": answer.count("|- Try ")}


def _shown(problem: tuple[Sequence[int], int]) -> str:
    numbers, target = problem
    found = search(numbers, target)
    if found is None:
        raise ValueError(f"the worked example {numbers} does not reach {target}")
    return f"# Example\nNumbers: {list(numbers)}\nTarget: {target}\n\n{found.demonstration}\n"


COUNTDOWN = Countdown()
