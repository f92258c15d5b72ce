r"""MATH: competition problems after worked examples; the answer is what the last \boxed{} holds, compared after normalising.

Source: Hendrycks et al., 2021, "Measuring Mathematical Problem Solving With the MATH Dataset": the last box as in
modeling/dataset/util.py of its code, the normalisation in `latex.py`. The layout of the prompt: Lewkowycz et al., 2022,
"Solving Quantitative Reasoning Problems with Language Models", appendix D.2.
We differ: the four examples are drawn from the train split for each prompt, where that paper fixes four; a reference solution
whose last box has no brace (`\boxed 2`, twice in the train split) has the token behind it as its answer, where that code finds
none. A model's answer needs the braces, as there.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from experiments.tasks.dataset_files import Record, datasets_folder
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub, Parts, Source
from experiments.tasks.fewshot import FewShot
from experiments.tasks.latex import equivalent

SUBJECTS = (
    "algebra",
    "counting_and_probability",
    "geometry",
    "intermediate_algebra",
    "number_theory",
    "prealgebra",
    "precalculus",
)
BOX = "\\boxed"
_UNBRACED = re.compile(r"\s*([^\s${}\\]+)")


@dataclass(frozen=True)
class MathExact(FewShot):
    """Problems of `test` (fields problem and solution) after at most `shots` worked examples of `train`."""

    test: Source
    train: Source
    NAME: str = "math"
    shots: int = 4
    fields: ClassVar[tuple[str, ...]] = ("problem", "solution")
    PREFIX: ClassVar[str] = "\n\nSolution:"
    new_tokens: ClassVar[int] = 512

    def ask(self, record: Record) -> str:
        return f"Problem:\n{record['problem']}"

    def solve(self, record: Record) -> str:
        return f"\n{record['solution']}"

    def answer(self, record: Record) -> str:
        found = last_boxed(record["solution"])
        if found is None:
            found = last_unbraced(record["solution"])
        if found is None:
            raise ValueError(f"{self.NAME}: nothing is boxed in the solution {record['solution']!r}")
        return found

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """1 if the last box, before any further problem, is equivalent to one of the references."""
        found = last_boxed(answer.partition("Problem:")[0])
        return float(found is not None and any(equivalent(found, reference) for reference in references))


def last_boxed(text: str) -> str | None:
    r"""What the last `\boxed{...}` holds, its braces balanced; None where there is none or it is not closed."""
    tail = text[text.rfind(BOX) + len(BOX) :] if BOX in text else ""
    depth = 0
    for at, letter in enumerate(tail):
        depth += {"{": 1, "}": -1}.get(letter, 0)
        if depth <= 0:
            return tail[1:at] if at else None
    return None


def last_unbraced(text: str) -> str | None:
    r"""What stands right behind the last `\boxed` without a brace, `2` of `\boxed 2$`; None where nothing does.

    It ends at white space, a dollar sign, a brace or a backslash, and without its final period.
    """
    found = _UNBRACED.match(text[text.rfind(BOX) + len(BOX) :]) if BOX in text else None
    return found[1].removesuffix(".") if found else None


def split(name: str) -> LocalOrHub:
    """NAME.jsonl in math in `datasets_folder()`, all subjects in one; else the hub's files, one a subject."""
    hub = [Hub(f"hf://datasets/EleutherAI/hendrycks_math/{subject}/{name}-00000-of-00001.parquet") for subject in SUBJECTS]
    return LocalOrHub(Local(datasets_folder() / "math" / f"{name}.jsonl"), Parts(tuple(hub)))


MATH = MathExact(split("test"), split("train"))
