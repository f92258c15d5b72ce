"""A benchmark that only its own code has rules for: `experiments.tasks.split` says how its prompts are compressed."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.task import DatasetTask
from experiments.tasks.protocol import Rules


@dataclass(frozen=True)
class OwnRules(DatasetTask):
    """A task of such a benchmark. `also` gives what the benchmark reports of an answer beside its score."""

    def kvpress(self) -> Rules:
        raise ValueError(f"{self.BENCHMARK}: kvpress has no rules for it, only the benchmark: ask split or whole")

    def meta(self, row: Record) -> dict[str, Any]:
        return {}

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """Further published figures of an answer, by their names; they go into the result row."""
        del answer, references
        return {}
