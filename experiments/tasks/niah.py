"""Needle in a haystack over essays on a grid of depths and lengths, with one needle or several.

    depth of prompt i = (i mod d) / (d - 1);  needle j of m at depth + j (1 - depth) / m

so that d prompts of each length are one pass over the grid; `meta["depth"]` is the grid's depth, from 0 to 1.

Source: Kamradt, 2023, "LLMTest_NeedleInAHaystack": evenly spaced depths, a needle after the last sentence that ends before
its depth, and the spacing of several needles (llm_multi_needle_haystack_tester.py). We differ: the needles are RULER's magic
numbers and the score is the share of the numbers that the answer contains, where that test hides one fixed sentence and asks
a model to judge; depths are shares of the text's characters, the benchmark's of its tokens.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import accumulate, islice
from typing import ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.essays import between, sentences
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.kinds import NUMBERS, WORDS
from experiments.tasks.ruler.match import string_match_all
from experiments.tasks.ruler.niah import MANY, NEEDLE, ONE, listed


@dataclass(frozen=True)
class DepthGrid(Generated):
    """`needles` needles, all asked for, the first at one of `depths` evenly spaced depths."""

    NAME: str = "niah"
    depths: int = 10
    needles: int = 1
    new_tokens: ClassVar[int] = 64

    def __post_init__(self) -> None:
        if self.depths < 2 or self.needles < 1:
            raise ValueError(f"a grid has 2 depths and 1 needle at least; got {self.depths} and {self.needles}")

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Share of the numbers that the answer contains."""
        return string_match_all(answer, references)

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        keys = list(islice(WORDS.distinct(draw), self.needles))
        numbers = tuple(islice(NUMBERS.distinct(draw), self.needles))
        first = request.index % self.depths / (self.depths - 1)
        depths = [first + j * (1 - first) / self.needles for j in range(self.needles)]
        hidden = [NEEDLE.format(kind="numbers", key=key, value=value) for key, value in zip(keys, numbers, strict=True)]
        parts = sentences(request.essay(amount))
        text = between(parts, hidden, places(parts, depths))
        words = {"kind": "number" if self.needles == 1 else "numbers", "query": listed(keys)}
        introduction, question, prefix = (part.format(**words) for part in (ONE if self.needles == 1 else MANY))
        return Draft(introduction + text, question, prefix, numbers, {"depth": first, "needles": self.needles})


def places(parts: Sequence[str], depths: Sequence[float]) -> list[int]:
    """For each depth, how many whole sentences end at or before that share of the text's characters."""
    ends = list(accumulate(len(part) + 1 for part in parts))
    return [len(parts) if depth >= 1 else bisect_right(ends, depth * ends[-1]) for depth in depths]


GRID = DepthGrid()
MULTI = DepthGrid("niah_multi", needles=3)
