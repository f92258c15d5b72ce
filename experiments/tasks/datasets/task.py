"""A task whose prompts are the rows of a data set; `Answering(task)` puts it in a sweep.

Prompt i of a seed asks the i-th row of an order drawn by `random.Random(f"{seed}/{benchmark}/{task}")`, the same for both
protocols and all lengths: the first prompts of a seed are a sample of the task, and as many prompts as rows are the task.
"""

import json
import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.rows import Data, load
from experiments.tasks.datasets.source import Source
from experiments.tasks.example import Example
from experiments.tasks.protocol import OFFICIAL, Asking, Rules


@cache
def templates(benchmark: str) -> Mapping[str, Mapping[str, Any]]:
    """What the benchmark's and kvpress's code say of each task; the file beside this one names where each entry is from."""
    return json.loads((Path(__file__).parent / f"{benchmark}.json").read_text(encoding="utf-8"))["tasks"]


@dataclass(frozen=True)
class DatasetTask(ABC):
    """A task of a benchmark, asked and graded as `protocol` says.

    Attributes:
        task: its name in the benchmark.   source: its file of rows.   protocol: OFFICIAL or KVPRESS.
    """

    task: str
    source: Source
    protocol: Asking = OFFICIAL
    BENCHMARK: ClassVar[str]
    FIELDS: ClassVar[tuple[str, ...]]

    @property
    def NAME(self) -> str:
        return f"{self.BENCHMARK}/{self.task}/{self.protocol.name}"

    @property
    def MODES(self) -> tuple[str, ...]:
        return self.protocol.MODES

    @property
    def fields(self) -> tuple[str, ...]:
        """What every row must have."""
        return self.FIELDS

    @abstractmethod
    def official(self) -> Rules:
        """The benchmark's own rules."""

    @abstractmethod
    def kvpress(self) -> Rules:
        """kvpress's rules."""

    @abstractmethod
    def references(self, row: Record) -> tuple[str, ...]:
        """The right answers."""

    @abstractmethod
    def meta(self, row: Record) -> dict[str, Any]:
        """What a result row repeats of the data set's row."""

    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Score of an answer, from 0 to 1."""
        return self.rules.grade(answer, references)

    def examples(
        self, lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
    ) -> Iterator[Example]:
        """Prompts `start` .. `count - 1`, no more than the data set has rows; `length` as in `experiments.tasks.protocol`.

        `haystack` serves other tasks. Raises:
            ValueError: a mode the protocol lacks, a length too short or too long for the model, a row that lacks a field.
            FileNotFoundError: the data set is not there.
        """
        del haystack
        self._check(lm, length, mode)
        found = self.rows
        order = random.Random(f"{seed}/{self.BENCHMARK}/{self.task}").sample(range(len(found)), len(found))
        for index in range(start, min(count, len(found))):
            yield self._example(lm, length, index, order[index], mode=mode)

    @cached_property
    def rules(self) -> Rules:
        """The rules of the task's protocol."""
        return self.protocol.rules(self)

    @cached_property
    def data(self) -> Data:
        """The task's files, read once."""
        return load(self.source, self.fields)

    @property
    def rows(self) -> Sequence[Record]:
        """All rows of the task."""
        return self.data.rows

    def _example(self, lm: Any, length: int, index: int, number: int, *, mode: str) -> Example:
        row = self.rows[number]
        cut = self.protocol.cut(lm, self.rules.ask(row), length, mode)
        origin = {"data": self.data.digest, "protocol": self.protocol.name, "row": number, "dropped_tokens": cut.dropped}
        return Example(
            task=self.NAME,
            mode=mode,
            length=length,
            index=index,
            context=cut.context,
            question=cut.question,
            prefix=cut.prefix,
            references=self.references(row),
            new_tokens=self.rules.new_tokens,
            stop=tuple(lm.stop_ids),
            meta=origin | self.meta(row),
        )

    def _check(self, lm: Any, length: int, mode: str) -> None:
        if mode not in self.MODES:
            raise ValueError(f"{self.NAME} has no question mode {mode!r}, only {', '.join(self.MODES)}")
        if length < 2:
            raise ValueError(f"{self.NAME}: length {length} is too short, a prompt keeps a token of each end")
        new, most = self.rules.new_tokens, lm.decoder.max_positions
        if length + new > most:
            raise ValueError(f"{self.NAME}: length {length} and {new} tokens of answer need more than the model's {most} positions")
