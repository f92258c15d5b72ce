"""LongProc's tracking of beliefs: a line `- Step i: ...` for every step of a story about agents and objects.

    accuracy = [all lines agree];  partial = i / n: i the first line that differs, else the lines of the shorter; n lines
"""

import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure

_IDLE = re.compile(r"\b(a|an|the|on|in|at|the|step|thinks|think|believes|believe|is|are|of|location|know|knows|belief)\b")
_NO_MARKS = str.maketrans("", "", string.punctuation + "’")


@dataclass(frozen=True)
class TomTracking(Procedure):
    """Source: longproc/tom_tracking_evaluator.py; lines agree without case, punctuation and words such as "step" and "is"."""

    KIND: ClassVar[str] = "tom_tracking"
    FILE: ClassVar[str] = "tom_tracking_{size}.json"
    FIELDS: ClassVar[tuple[str, ...]] = ("story_components", "story", "question", "solution")

    def values(self, row: Record) -> Mapping[str, Any]:
        return {name: row[name] for name in ("story_components", "story", "question")}

    def references(self, row: Record) -> tuple[str, ...]:
        return (row["solution"],)

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        ours, theirs = beliefs(answer), beliefs(references[0])
        differ = [i for i, (line, wanted) in enumerate(zip(ours, theirs, strict=False)) if line != wanted]
        exact = float(ours == theirs)
        partial = exact or (differ[0] if differ else min(len(ours), len(theirs))) / len(theirs)
        return {"score": exact, "partial_accuracy": partial, "extraction_rate": 1.0}


def beliefs(text: str) -> list[str]:
    """Normalised lines that begin with "-"; an indented line counts only where it is the first, as published."""
    marked = "\n".join(line for line in text.splitlines() if line.strip().startswith("-")).strip()
    lines = [line[1:].strip() for line in marked.split("\n") if line.startswith("-")]
    return [found for line in lines if (found := normalised(line))]


def normalised(line: str) -> str:
    """Lower case, without punctuation, idle words and repeated white space, in this order."""
    return " ".join(_IDLE.sub(" ", line.lower().translate(_NO_MARKS)).split())
