"""A task whose cells are decoded one by one, so that a time is the cell's own."""

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.sweep import Task
from experiments.tasks.example import Example, Read


@dataclass(frozen=True)
class Alone:
    """`task` with one row a batch: the same answers, and a `seconds_per_token` that is the cell's own."""

    task: Task

    @property
    def NAME(self) -> str:
        return self.task.NAME

    @property
    def MODES(self) -> tuple[str, ...]:
        return self.task.MODES

    def examples(self, lm: Any, length: int, count: int, seed: int, **how: Any) -> Iterator[Example]:
        return self.task.examples(lm, length, count, seed, **how)

    def measure(self, lm: Any, cache: Any, policy: Any, reads: Sequence[Read]) -> list[dict[str, Any]]:
        return self.task.measure(lm, cache, policy, reads)

    def alike(self, example: Example) -> Hashable:
        return self.task.alike(example)

    def tokens(self, example: Example) -> tuple[int, int]:
        return self.task.tokens(example)

    def rows_at_once(self, lm: Any, example: Example) -> int:
        return 1
