r"""NeedleBench's chains of relations, in a haystack or alone (multi.py, atc.py); a name or a distance is boxed."""

import json
import random
import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from experiments.provenance import digest
from experiments.tasks.chat import encode_plain
from experiments.tasks.datasets.needlebench.insert import inserted, starts_from
from experiments.tasks.datasets.needlebench.task import DEPTHS, LANGUAGES, Asked, NeedleBench, repeat_of
from experiments.tasks.datasets.source import Local
from experiments.tasks.datasets.task import templates
from experiments.tasks.math_exact import last_boxed

QUESTIONS = ("eldest", "ancestor", "descendant", "distance")


@dataclass(frozen=True)
class Family:
    """Names from the eldest on, their relations in a shuffled order, and the generations between first and last."""

    names: list[str]
    relations: list[str]
    generations: int


@dataclass(frozen=True)
class Relations(NeedleBench):
    """Tasks of `needles` relations between names of names.json."""

    needles: int
    new_tokens: ClassVar[int] = 1024

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the last box, cleaned, is the reference."""
        return float(boxed(answer).strip() == references[0].strip())

    def family(self, draw: random.Random) -> Family:
        """The benchmark's family of a source of chance."""
        written = templates("needlebench")[f"relations_{self.language}"]
        names, relations, generations = draw.sample(self.names, self.needles + 1), [], 0
        for elder, younger in zip(names, names[1:], strict=False):
            form, term = draw.choice(written["templates"]), draw.choice(written["terms"])
            relations.append(form.format(A=elder, B=younger, relationship=term))
            generations += 1 + (term in written["two_generations"])
        draw.shuffle(relations)
        return Family(names, relations, generations)

    @cached_property
    def names(self) -> list[str]:
        """Names of the language. Raises ValueError for a file of another layout or with too few."""
        (file,) = Local(self.folder / "names.json").paths()
        try:
            found = json.loads(file.read_bytes())[LANGUAGES[self.language]].split(",")
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            wanted = f"{LANGUAGES[self.language]!r}: names and commas"
            raise ValueError(f"{file}: expected an object with {wanted} ({error!r})") from error
        if len(found) <= self.needles:
            raise ValueError(f"{file} has {len(found)} names, {self.needles + 1} are needed")
        return found

    @property
    def _names_digest(self) -> str:
        return digest([",".join(self.names).encode()])


@dataclass(frozen=True)
class Chain(Relations):
    """Relations put into essays: who is the eldest?"""

    @property
    def KIND(self) -> str:
        return f"multi_{self.needles}"

    @property
    def digest(self) -> str:
        return f"{self.essays.digest}+{self._names_digest}"

    def ask(self, lm: Any, length: int, index: int, seed: int) -> Asked:
        repeat, depth = repeat_of(index, seed), DEPTHS[index % len(DEPTHS)]
        family = self.family(random.Random(repeat))
        needles = [encode_plain(lm, f"\n{relation}\n") for relation in family.relations]
        text = self.filler(lm, length, repeat, sum(map(len, needles)))
        hidden = lm.decode(inserted(text, needles, starts_from(len(text), depth, [len(needle) for needle in needles])))
        last = family.names[-1]
        asked = templates("needlebench")[f"multi_{self.language}"]["asked"].format(last_person=last)
        parts = self.text("multi", context=hidden, retrieval_question=asked, last_person=last)
        return Asked(parts["context"], parts["question"], (family.names[0],), {"depth": depth / 100})


@dataclass(frozen=True)
class TraceChallenge(Relations):
    """Relations alone; prompt i asks the (i mod 4)-th type of question."""

    @property
    def KIND(self) -> str:
        return f"atc_{self.needles}"

    @property
    def digest(self) -> str:
        return self._names_digest

    def ask(self, lm: Any, length: int, index: int, seed: int) -> Asked:
        kind = index % len(QUESTIONS)
        family = self.family(random.Random(repeat_of(index, seed, every=len(QUESTIONS)) + 1 + 10_000 * kind))
        eldest, youngest, n = family.names[0], family.names[-1], family.generations
        values, right = {
            "eldest": ({"last_person": youngest}, eldest),
            "ancestor": ({"person": youngest, "n": n}, eldest),
            "descendant": ({"person": eldest, "n": n}, youngest),
            "distance": ({"person_a": eldest, "person_b": youngest}, str(n)),
        }[QUESTIONS[kind]]
        parts = self.text(f"atc_{QUESTIONS[kind]}", shuffled_story="".join(family.relations), **values)
        tokens = len(encode_plain(lm, parts["context"]))
        if tokens > length:
            raise ValueError(f"length {length} is too short for {self.NAME}: this prompt has {tokens} tokens")
        return Asked(**parts, references=(right,), meta={"type": QUESTIONS[kind]})


def boxed(answer: str) -> str:
    r"""What the last box holds, without a second pair of braces, \text{}, backslashes, quotes and tildes; "None" for nothing."""
    found = last_boxed(answer)
    if not found:
        return "None"
    inner = re.match(r"^\{(.*)\}$", found)
    text = re.sub(r"\\text\{([^}]+)\}", r"\1", inner[1] if inner else found)
    text = re.sub(r"\\[\[\]]", "", re.sub(r"\\boxed\{([^}]+)\}", r"\1", text)).replace("\\", "")
    return re.sub(r"\s+", " ", text).strip().replace('"', "").replace("'", "").replace("~", " ")
