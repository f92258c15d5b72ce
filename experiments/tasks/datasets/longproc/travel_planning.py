"""LongProc's travel planning: a trip plan found by searching, day by day, for cities that fit.

    accuracy = [cities and days of the plan are the reference's];  partial = i / n: i the first line of the search that lacks
    the reference's words, else the last compared; n lines
"""

import json
import re
import string
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.longproc.procedure import Procedure, tagged
from experiments.tasks.datasets.longproc.travel_search import demonstration
from experiments.tasks.datasets.metrics.normalize import english
from experiments.tasks.datasets.rows import load
from experiments.tasks.datasets.source import Local

HEAD, ASIDE = "<Solving Procedure>", "Output the plan in the required format:"
#: Tokens of the right answer, from and below.
RANGES = {"2k": (0, 2048), "8k": (4096, 8192)}


@dataclass(frozen=True)
class TravelPlanning(Procedure):
    """Source: longproc/travel_planning_evaluator.py; the plan is read as NATURAL PLAN reads it (Zheng et al., 2024)."""

    KIND: ClassVar[str] = "travel_planning"
    FILE: ClassVar[str] = "travel_planning_all.json"
    SIZES: ClassVar[tuple[str, ...]] = ("2k", "8k")
    SHOWN: ClassVar[tuple[str, ...]] = ("num_cities", "constraints", "connected_cities", "disambig_question_text")
    FIELDS: ClassVar[tuple[str, ...]] = (*SHOWN, "estimated_output_tokens", "ground_truth_cities", "ground_truth_durations")

    @cached_property
    def rows(self) -> Sequence[Record]:
        """Rows whose right answer has the task's size."""
        least, most = RANGES[self.size]
        return [row for row in self.data.rows if least <= row["estimated_output_tokens"] < most]

    def values(self, row: Record) -> Mapping[str, Any]:
        return {"demonstration": self._shown, "problem": row["disambig_question_text"]}

    def references(self, row: Record) -> tuple[str, ...]:
        """The right search, and cities and days as JSON."""
        cities = [city for city in row["ground_truth_cities"].split("**") if city]
        days = [int(count) for count in row["ground_truth_durations"].split("**") if count]
        return demonstration(row), json.dumps(list(zip(cities, days, strict=True)))

    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        text, right = tagged(answer, "Plan"), [tuple(stop) for stop in json.loads(references[1])]
        exact = float(text is not None and plan(text)[: len(right)] == right)
        return {
            "score": exact,
            "partial_accuracy": exact or search_share(answer, references[0]),
            "extraction_rate": float(text is not None),
        }

    @property
    def others(self) -> Sequence[Path]:
        return (self.folder / "travel_planning_icl_examples.json",)

    @cached_property
    def _shown(self) -> str:
        examples = load(Local(*self.others), self.SHOWN).rows
        return "\n\n".join(f"# Example\n{row['disambig_question_text']}\n\n{demonstration(row)}" for row in examples)


def plan(text: str) -> list[tuple[str, int]]:
    """(city, days) of each stop: cities by the flights, days by the flights' days, the end by the last range of days."""
    ranges, flights, total = [], [], None
    for line in text.split("\n"):
        if found := re.findall(r"European cities for (\d+) days", line):
            total = int(found[0])
        if found := re.findall(r"\d+-\d+", line):
            ranges.append(found[0])
            if int(found[0].split("-")[1]) == total:
                break
        flights += re.findall(r".*Day (\d+).*from (\w+) to (\w+)", line)[:1]
    if not ranges or not flights:
        return []
    cities = [flights[0][1], *(arrival for _, _, arrival in flights)]
    days = [1, *(int(day) for day, _, _ in flights), int(ranges[-1].split("-")[1])]
    return [(city, after - before + 1) for city, (before, after) in zip(cities, pairwise(days), strict=True)]


def search_share(answer: str, reference: str) -> float:
    """i / n, as published: at most (n - 1) / n; lines are compared without case, punctuation and articles."""
    ours, theirs = (_lines(text) for text in (answer, reference))
    at = 0
    for at, (line, wanted) in enumerate(zip(ours, theirs, strict=False)):  # noqa: B007
        if english(wanted) not in english(line):
            break
    return at / len(theirs)


def _lines(text: str) -> list[str]:
    """Lines that are not empty, from the search's opening on, where it has one."""
    text = text.replace(ASIDE, "")
    searched = HEAD + text.split(HEAD)[1] if HEAD in text else text
    return [line for line in searched.split("\n") if line.strip(string.whitespace)]
