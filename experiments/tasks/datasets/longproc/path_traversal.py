"""LongProc's path traversal: the route between two cities of a graph in which every city has one way out.

    accuracy = [route is the reference];  partial = (i + 1) / n: i the first line that differs, else the last compared; n lines
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure, tagged


@dataclass(frozen=True)
class PathTraversal(Procedure):
    """Source: longproc/longproc_data.py, eval_path_traversal. The first wrong line counts as published."""

    KIND: ClassVar[str] = "path_traversal"
    FILE: ClassVar[str] = "path_traversal_{size}.json"
    FIELDS: ClassVar[tuple[str, ...]] = ("context_nl", "question_repr", "answer_nl")

    def values(self, row: Record) -> Mapping[str, Any]:
        source, destination = row["question_repr"]
        return {"city_context": row["context_nl"], "src_city": source, "dst_city": destination}

    def references(self, row: Record) -> tuple[str, ...]:
        return (row["answer_nl"],)

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        route, right = tagged(answer, "Route"), references[0].strip()
        if route is None:
            return {"score": 0.0, "partial_accuracy": 0.0, "extraction_rate": 0.0}
        exact = float(route == right)
        return {"score": exact, "partial_accuracy": exact or walked(route, right), "extraction_rate": 1.0}


def walked(route: str, right: str) -> float:
    """Share of the lines up to the first that differs, that one counted."""
    pairs = list(zip(route.split("\n"), right.split("\n"), strict=False))
    differ = [i for i, (line, wanted) in enumerate(pairs) if line != wanted]
    return (differ[0] + 1 if differ else len(pairs)) / len(right.split("\n"))
