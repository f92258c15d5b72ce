"""A sentence hidden in essays, to be said again: part of it counts.

    sentence  The old gardener of Torvik keeps nine copper lanterns under the wooden bridge.
    answer    keeps ... (the opening words up to "keeps" are given)
    score = ROUGE-L of the answer's first sentence against the rest of the sentence, from 0 to 1

Every prompt draws its own sentence. Words are ours; none of the sentences that `kvjax calibrate compresskv` hides is among them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

from experiments.tasks.datasets.metrics.rouge_l import rouge_l
from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.essays import between, sentences
from experiments.tasks.generated import Generated
from experiments.tasks.niah import places

WHO = ("old gardener", "young clockmaker", "retired pilot", "quiet librarian", "tall ferryman", "blind organist", "stubborn miller")
WHERE = ("Torvik", "Alder Hill", "Port Maren", "Quillan", "Sandgate", "Ostrava", "Little Wenn", "Brackwater")
HOW_MANY = ("three", "four", "five", "seven", "nine", "eleven", "twelve", "forty")
WHAT = ("copper lanterns", "paper kites", "glass marbles", "silver thimbles", "wooden flutes", "blue umbrellas", "iron keys")
PLACE = (
    "under the wooden bridge", "behind the church organ", "inside a hollow oak", "above the bakery oven", "in a locked green trunk",
    "beneath the harbour stairs", "among the winter apples",
)  # fmt: skip
INTRODUCTION = "Read the following text. I will ask you about one sentence of it afterwards.\n\n"


@dataclass(frozen=True)
class Recall(Generated):
    """`recall`: the sentence's opening is given, the rest is to be copied."""

    NAME: str = "recall"
    new_tokens: ClassVar[int] = 24

    def drafts(self, request: Request) -> Drafts:
        return Drafts(partial(self._write, request))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """ROUGE-L of the answer up to its first full stop or line end."""
        first = answer.strip().split("\n")[0].split(".")[0]
        return rouge_l(first, references[0])

    def _write(self, request: Request, amount: int) -> Draft:
        draw = request.draw(self.NAME)
        subject = f"The {draw.choice(WHO)} of {draw.choice(WHERE)} keeps"
        rest = f"{draw.choice(HOW_MANY)} {draw.choice(WHAT)} {draw.choice(PLACE)}"
        depth = draw.random()
        parts = sentences(request.essay(amount))
        text = INTRODUCTION + between(parts, [f"{subject} {rest}."], places(parts, [depth]))
        asked = f"\n\nWhat does {subject[0].lower()}{subject[1:-6]} keep, and where?"
        return Draft(text, asked, subject, (rest,), {"depth": depth})


RECALL = Recall()
