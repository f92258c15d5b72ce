"""LongProc's Countdown: four numbers, a target, and the whole search for the equations that reach it.

    accuracy = [the three equations solve it];  partial: see `countdown_check.search_share`
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from experiments.tasks.countdown_check import search_share, solves
from experiments.tasks.countdown_search import Search, search
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure, tagged

#: The two worked searches of every prompt.
SHOWN = (((40, 19, 23, 7), 29), ((9, 16, 6, 18), 12))
HEAD = "# Search Procedure"


@dataclass(frozen=True)
class Countdown(Procedure):
    """Source: longproc/longproc_data.py, _load_countdown_data and eval_countdown; the searches are those of `search`."""

    KIND: ClassVar[str] = "countdown"
    FILE: ClassVar[str] = "countdown_{size}.json"
    FIELDS: ClassVar[tuple[str, ...]] = ("nums", "target")

    def values(self, row: Record) -> Mapping[str, Any]:
        return {"demonstration": demonstrations(), "nums": row["nums"], "target": row["target"]}

    def references(self, row: Record) -> tuple[str, ...]:
        """The right search, and numbers and target as JSON."""
        return (_solved(self.NAME, row["nums"], row["target"]).demonstration, json.dumps([row["nums"], row["target"]]))

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        return graded(answer, references)


def graded(answer: str, references: Sequence[str]) -> dict[str, float]:
    """The benchmark's figures of an answer; references as of `Countdown.references`."""
    numbers, target = json.loads(references[1])
    solution = tagged(answer, "Solution")
    found = float(solution is not None)
    if solution is not None and solves(numbers, target, solution):
        return {"score": 1.0, "partial_accuracy": 1.0, "extraction_rate": 1.0}
    if HEAD not in answer:
        return {"score": 0.0, "partial_accuracy": 0.0, "extraction_rate": found}
    right = references[0].split(HEAD)[-1].split("Now we have found the target")[0]
    return {"score": 0.0, "partial_accuracy": search_share(answer.split(HEAD)[-1], right), "extraction_rate": found}


@cache
def demonstrations() -> str:
    """Both worked searches, as they stand in the prompt."""
    shown = [(list(numbers), target, _solved("longproc", numbers, target)) for numbers, target in SHOWN]
    parts = (f"# Example\nNumbers: {numbers}\nTarget: {target}\n\n{found.demonstration}" for numbers, target, found in shown)
    return "\n\n".join(parts)


def _solved(name: str, numbers: Sequence[int], target: int) -> Search:
    whole = isinstance(numbers, list | tuple) and all(type(number) is int for number in (*numbers, target))
    found = search(numbers, target) if whole and len(numbers) == 4 else None
    if found is None:
        raise ValueError(f"{name}: expected four whole numbers that reach their target, got {numbers} and {target}")
    return found
