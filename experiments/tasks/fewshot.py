"""Problems with a known answer, solved after worked examples: the context is the examples, the question is the problem.

Prompt i of a seed asks the i-th problem of an order of the test split drawn by `random.Random(f"{seed}/{task}")`; the i-th
worked examples come from the train split by `random.Random(f"{seed}/{task}/{i}")`. Neither depends on the length.
"""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import Any

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.rows import Data, load
from experiments.tasks.datasets.source import Source
from experiments.tasks.example import Example
from experiments.tasks.generated import MODES, check_mode


class FewShot(ABC):
    """A task of worked examples and a problem; `Answering(task)` puts it in a sweep.

    Attributes:
        test: where problems come from.   train: where worked examples come from; not read if `shots` is 0.
        shots: worked examples at most.
        fields: what a row must have.   PREFIX: opens the answer; it begins with a line break.
        new_tokens: tokens generated at most.
    """

    NAME: str
    MODES: tuple[str, ...] = MODES
    test: Source
    train: Source
    shots: int
    fields: tuple[str, ...]
    PREFIX: str
    new_tokens: int

    @abstractmethod
    def ask(self, record: Record) -> str:
        """The problem, as it stands in the prompt."""

    @abstractmethod
    def solve(self, record: Record) -> str:
        """The worked solution, as it follows PREFIX."""

    @abstractmethod
    def answer(self, record: Record) -> str:
        """The reference answer. Raises ValueError where the record has none."""

    @abstractmethod
    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Score of an answer, from 0 to 1."""

    def examples(
        self, lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
    ) -> Iterator[Example]:
        """Prompts `start` .. `count - 1`, or up to the last problem, with as many of the `shots` examples as fit into `length`.

        Raises:
            ValueError: unknown mode, a row that lacks a field or an answer, a context without a token.
            FileNotFoundError: the data set is not there.
        """
        del haystack
        check_mode(mode)
        test = self.problems.rows
        train = self.worked.rows if self.shots else ()
        order = random.Random(f"{seed}/{self.NAME}").sample(range(len(test)), len(test))
        for index in range(start, min(count, len(test))):
            draw = random.Random(f"{seed}/{self.NAME}/{index}")
            shown = draw.sample(train, min(self.shots, len(train)))
            yield self._example(lm, length, index, test[order[index]], shown=shown, mode=mode)

    @cached_property
    def problems(self) -> Data:
        """The test split, read once."""
        return self._read(self.test)

    @cached_property
    def worked(self) -> Data:
        """The train split, read once."""
        return self._read(self.train)

    def _example(self, lm: Any, length: int, index: int, record: Record, *, shown: list[Record], mode: str) -> Example:
        before, after = frame(lm)

        def encode(text: str) -> tuple[int, ...]:
            return tuple(encode_plain(lm, text))

        solved = [f"{self.ask(shot)}{self.PREFIX}{self.solve(shot)}\n\n" for shot in shown]
        while solved and len(encode(before + "".join(solved))) > length:
            solved.pop()
        context = encode(before + "".join(solved))
        if not context and mode == "unseen":
            raise ValueError(f"{self.NAME}: nothing comes before the question at length {length}: ask for a longer one, or seen")
        return Example(
            task=self.NAME,
            mode=mode,
            length=length,
            index=index,
            context=context,
            question=encode(self.ask(record)),
            prefix=encode(after.removesuffix("\n") + self.PREFIX),
            references=(self.answer(record),),
            new_tokens=self.new_tokens,
            stop=tuple(lm.stop_ids),
            meta={"data": self._digest, "shots": len(solved)},
        )

    @property
    def _digest(self) -> str:
        """Of the problems' file and, if there are worked examples, of theirs."""
        return "+".join(split.digest for split in (self.problems, *((self.worked,) if self.shots else ())))

    def _read(self, source: Source) -> Data:
        found = load(source, self.fields)
        for record in found.rows:
            self.answer(record)
        return found
