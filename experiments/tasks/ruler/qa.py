"""RULER's question answering (qa_1, qa_2): the documents that answer a question, shuffled among others.

Source: Hsieh et al., 2024, "RULER", section 3.4; scripts/data/synthetic/qa.py of the benchmark, whose wording is kept:
documents like the needed ones come first (paragraphs of the same article), then any others; numbered after shuffling.
We differ: prompt i asks the i-th question of an order drawn from the seed, the benchmark the i-th of the file; the last
document added ends after any of its words, so that prompts come close to their length; when all documents are used, the
added ones come again.
"""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.draft import Draft, Drafts, Request
from experiments.tasks.generated import Generated
from experiments.tasks.ruler.documents import Collection, Question, read
from experiments.tasks.ruler.match import string_match_part

ASKING = "Answer the question based on the given documents. Only give me the answer and do not output any other words."
INTRODUCTION = f"{ASKING}\n\nThe following are given documents.\n\n"
QUESTION = f"\n\n{ASKING}\n\nQuestion: "
PREFIX = " Answer:"


@dataclass(frozen=True)
class QuestionAnswering(Generated):
    """Questions about the documents of `file`, whose layout is `squad` or `hotpotqa`; filler is counted in words."""

    NAME: str
    file: Path
    layout: Callable[[Any], Collection]
    new_tokens: ClassVar[int] = 32

    def drafts(self, request: Request) -> Drafts:
        found = read(self.file, self.layout)
        order = random.Random(f"{request.seed}/{self.NAME}").sample(found.questions, len(found.questions))
        question = order[request.index % len(order)]
        return Drafts(partial(self._write, request, found, question), least=0)

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the answer contains one of the references."""
        return string_match_part(answer, references)

    def _write(self, request: Request, found: Collection, question: Question, amount: int) -> Draft:
        draw, documents = request.draw(self.NAME), found.documents
        shown = [documents[i] for i in question.needed] + added(documents, question, amount, draw)
        draw.shuffle(shown)
        text = "\n\n".join(f"Document {i}:\n{document}" for i, document in enumerate(shown, 1))
        return Draft(INTRODUCTION + text, QUESTION + question.text, PREFIX, question.answers, {"data": found.digest})


def added(documents: Sequence[str], question: Question, amount: int, draw: random.Random) -> list[str]:
    """Documents of `amount` words in all that the question does not need; the last is cut."""
    found: list[str] = []
    for number in others(len(documents), question, draw):
        if amount <= 0:
            return found
        words = documents[number].split(" ")
        found.append(" ".join(words[:amount]))
        amount -= len(words)


def others(count: int, question: Question, draw: random.Random) -> Iterator[int]:
    """Numbers of documents that are not needed: those alike, then the rest, each in a drawn order; over and over."""
    while True:
        alike = draw.sample(question.alike, len(question.alike))
        seen = {*question.needed, *alike}
        yield from alike
        while len(seen) < count:
            number = draw.randrange(count)
            if number not in seen:
                seen.add(number)
                yield number
