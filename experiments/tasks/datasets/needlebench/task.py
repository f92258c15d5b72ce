"""What NeedleBench's tasks share: their files, the haystack of a repeat, the prompt and its question."""

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from experiments.tasks.chat import encode_plain, frame
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.rows import Data, load
from experiments.tasks.datasets.source import Local
from experiments.tasks.datasets.task import templates
from experiments.tasks.example import Example
from experiments.tasks.generated import MODES, check_mode

LANGUAGES = {"en": "English", "zh": "Chinese"}
HAYSTACKS = {"en": "PaulGrahamEssays.jsonl", "zh": "zh_finance.jsonl"}
#: Tokens of the length that stay free.
BUFFERS = {"en": 500, "zh": 200}
DEPTHS = tuple(range(0, 101, 10))


@dataclass(frozen=True)
class Asked:
    """A prompt as text, divided where its question begins."""

    context: str
    question: str
    references: tuple[str, ...]
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class NeedleBench(ABC):
    """A task in a language, `en` or `zh`."""

    folder: Path
    language: str
    MODES: ClassVar[tuple[str, ...]] = MODES
    KIND: ClassVar[str]
    new_tokens: ClassVar[int]

    def __post_init__(self) -> None:
        if self.language not in LANGUAGES:
            raise ValueError(f"needlebench has no language {self.language!r}, only {', '.join(LANGUAGES)}")

    @property
    def NAME(self) -> str:
        return f"needlebench/{self.KIND}_{self.language}/split"

    @abstractmethod
    def ask(self, lm: Any, length: int, index: int, seed: int) -> Asked:
        """Prompt `index` of a seed."""

    @abstractmethod
    def grade(self, answer: str, references: Sequence[str]) -> float:
        """Score of an answer, from 0 to 1."""

    @property
    @abstractmethod
    def digest(self) -> str:
        """Of the files that the prompts are made of."""

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """Nothing more."""
        del answer, references
        return {}

    def examples(
        self, lm: Any, length: int, count: int, seed: int, *, haystack: Sequence[int], mode: str, start: int = 0
    ) -> Iterator[Example]:
        """Prompts `start` .. `count - 1`; the benchmark's own haystack serves, `haystack` other tasks.

        Raises:
            ValueError: unknown mode, a length too short for the needles or too long for the haystack, a file of another layout.
            FileNotFoundError: a file is not there.
        """
        del haystack
        check_mode(mode)
        before, after = frame(lm)
        for index in range(start, count):
            asked = self.ask(lm, length, index, seed)
            yield Example(
                task=self.NAME,
                mode=mode,
                length=length,
                index=index,
                context=tuple(encode_plain(lm, before + asked.context)),
                question=tuple(encode_plain(lm, asked.question)),
                prefix=tuple(encode_plain(lm, after)),
                references=asked.references,
                new_tokens=self.new_tokens,
                stop=tuple(lm.stop_ids),
                meta={"data": self.digest, **asked.meta},
            )

    def text(self, name: str, **values: Any) -> dict[str, str]:
        """The parts of a published text, filled."""
        return {part: form.format(**values) for part, form in templates("needlebench")[f"{name}_{self.language}"].items()}

    @cached_property
    def essays(self) -> Data:
        """The haystack's lines."""
        return load(Local(self.folder / HAYSTACKS[self.language]), ("text",))

    def filler(self, lm: Any, length: int, repeat: int, needles: int) -> list[int]:
        """Ids of the shuffled lines, as many as `length` leaves beside the buffer and the needles' tokens.

        The lines are shuffled once for every repeat up to this, each time from where they were.
        """
        wanted, lines = length - BUFFERS[self.language] - needles, [row["text"] for row in self.essays.rows]
        if wanted < 1:
            raise ValueError(f"length {length} is too short for {self.NAME}: {1 - wanted} more tokens are needed")
        for number in range(repeat + 1):
            random.Random(number).shuffle(lines)
        ids: list[int] = []
        for line in lines:
            ids += encode_plain(lm, line)
            if len(ids) >= wanted:
                return ids[:wanted]
        raise ValueError(f"length {length} is too long for {self.NAME}: {self.essays.paths[0]} has {len(ids)} tokens")


def repeat_of(index: int, seed: int, every: int = len(DEPTHS)) -> int:
    """The benchmark's repeat: one for every `every` prompts; other seeds go on far behind."""
    return index // every + 1000 * seed


def of_language(data: Data, language: str) -> list[Record]:
    """Rows of needles.jsonl in a language. Raises ValueError where there is none."""
    found = [row for row in data.rows if row["language"] == LANGUAGES[language]]
    if not found:
        raise ValueError(f"{data.paths[0]} has no needle in {LANGUAGES[language]}")
    return found
