"""NeedleBench's retrieval of one fact, and of one at every depth (origin.py and parallel.py)."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from experiments.tasks.chat import encode_plain
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.needlebench.insert import inserted, starts_at, starts_from
from experiments.tasks.datasets.needlebench.task import DEPTHS, Asked, NeedleBench, of_language, repeat_of
from experiments.tasks.datasets.rows import Data, load
from experiments.tasks.datasets.source import Local

MARKS = {"en": ("?", ".", "Please answer in the format of '", "'"), "zh": ("？", "。", "请按照'", "'的格式回答。")}


@dataclass(frozen=True)
class Facts(NeedleBench):
    """Tasks that take their needles from needles.jsonl."""

    @cached_property
    def needles(self) -> Data:
        return load(Local(self.folder / "needles.jsonl"), ("language", "needle", "retrieval_question", "arg1", "arg2"))

    @property
    def digest(self) -> str:
        return f"{self.essays.digest}+{self.needles.digest}"


@dataclass(frozen=True)
class Single(Facts):
    """One fact: 1 if the answer contains its keyword."""

    KIND: ClassVar[str] = "single"
    new_tokens: ClassVar[int] = 128

    def ask(self, lm: Any, length: int, index: int, seed: int) -> Asked:
        repeat, depth = repeat_of(index, seed), DEPTHS[index % len(DEPTHS)]
        fact = random.Random(repeat).choice(of_language(self.needles, self.language))
        needle = encode_plain(lm, f"\n{fact['needle']}\n")
        text = self.filler(lm, length, repeat, len(needle))
        hidden = lm.decode(inserted(text, [needle], starts_from(len(text), depth, [len(needle)])))
        parts = self.text("single", context=hidden, retrieval_question=fact["retrieval_question"])
        return Asked(**parts, references=(fact["arg2"], fact["needle"]), meta={"depth": depth / 100})

    def grade(self, answer: str, references: Sequence[str]) -> float:
        return float(references[0] in answer)

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """Version 1 of the score: likeness to the needle counts up to a fifth."""
        return {"v1_score": 1.0 if references[0] in answer else 0.2 * likeness(answer, references[1])}


@dataclass(frozen=True)
class Parallel(Facts):
    """A fact at every depth: the share of the keywords that the answer contains."""

    KIND: ClassVar[str] = "parallel"
    new_tokens: ClassVar[int] = 512

    def ask(self, lm: Any, length: int, index: int, seed: int) -> Asked:
        repeat = repeat_of(index, seed, every=1)
        facts = list(self._facts(seed))
        random.Random(repeat).shuffle(facts)
        needles = [encode_plain(lm, f"\n{fact['needle']}\n") for fact in facts]
        text = self.filler(lm, length, repeat, sum(map(len, needles)))
        hidden = lm.decode(inserted(text, needles, starts_at(len(text), DEPTHS, [len(needle) for needle in needles])))
        parts = self.text("parallel", context=hidden, retrieval_question=self._question(facts))
        return Asked(**parts, references=tuple(fact["arg2"] for fact in facts))

    def grade(self, answer: str, references: Sequence[str]) -> float:
        return sum(keyword in answer for keyword in references) / len(references)

    def _facts(self, seed: int) -> list[Record]:
        """As many facts as depths, no two with the same first or second argument."""
        rows = of_language(self.needles, self.language)
        random.Random(seed).shuffle(rows)
        found: list[Record] = []
        for row in rows:
            if all(row["arg1"] != other["arg1"] and row["arg2"] != other["arg2"] for other in found):
                found.append(row)
        if len(found) < len(DEPTHS):
            raise ValueError(f"{self.needles.paths[0]} has {len(found)} facts with arguments of their own, {len(DEPTHS)} needed")
        return found[: len(DEPTHS)]

    def _question(self, facts: Sequence[Record]) -> str:
        """All questions, then the forms of all answers, as the facts' own questions have them."""
        asks, ends, opening, closing = MARKS[self.language]
        questions = [fact["retrieval_question"] for fact in facts]
        try:
            forms = [question.split("'")[1].split(ends)[0] for question in questions]
        except IndexError as error:
            raise ValueError(f"{self.needles.paths[0]}: a retrieval_question has no answer's form in single quotes") from error
        return f"{'、'.join(question.split(asks)[0] + asks for question in questions)}{opening}{'、'.join(forms)}{closing}"


def likeness(answer: str, reference: str) -> float:
    """1 - Levenshtein distance / the longer length, without white space; two empty texts are alike."""
    a, b = ("".join(text.split()) for text in (answer, reference))
    return 1 - distance(a, b) / max(len(a), len(b)) if a or b else 1.0


def distance(a: str, b: str) -> int:
    """Levenshtein's distance: letters put in, left out or changed."""
    row = list(range(len(b) + 1))
    for i, letter in enumerate(a, 1):
        before, row = row, [i]
        for j, other in enumerate(b, 1):
            row.append(min(before[j] + 1, row[-1] + 1, before[j - 1] + (letter != other)))
    return row[-1]
