"""What LongProc's tasks share: the published template, the tokens of an answer by its size, tagged parts of an answer."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

import yaml

from experiments.provenance import digest
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.own_rules import OwnRules
from experiments.tasks.protocol import Asked, Asking, Rules
from experiments.tasks.split import WHOLE

NEW_TOKENS = {"0.5k": 1024, "2k": 3072, "8k": 9216}


@dataclass(frozen=True)
class Procedure(OwnRules):
    """A task and size of LongProc: `task` ends in _0.5k, _2k or _8k."""

    protocol: Asking = WHOLE
    BENCHMARK: ClassVar[str] = "longproc"
    KIND: ClassVar[str]
    SIZES: ClassVar[tuple[str, ...]] = ("0.5k", "2k", "8k")
    FILE: ClassVar[str]

    @abstractmethod
    def values(self, row: Record) -> Mapping[str, Any]:
        """What the template is filled with."""

    @abstractmethod
    def figures(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        """`score` and what else the benchmark reports."""

    @property
    def size(self) -> str:
        return self.task.rpartition("_")[2]

    @property
    def folder(self) -> Path:
        """Where the task's files are."""
        return self.data.paths[0].parent

    def official(self) -> Rules:
        return Rules(self._asked, NEW_TOKENS[self.size], self._score)

    def also(self, answer: str, references: Sequence[str]) -> Mapping[str, float]:
        return {name: value for name, value in self.figures(answer, references).items() if name != "score"}

    def meta(self, row: Record) -> dict[str, Any]:
        """`data` names the template, and the other files that prompts are made of, too."""
        return {"data": f"{self.data.digest}+{self._origin}"}

    @cached_property
    def _origin(self) -> str:
        return digest([self.template.encode(), *(path.read_bytes() for path in self.others if path.is_file())])

    @property
    def others(self) -> Sequence[Path]:
        """Files that prompts are made of, beside the rows and the template."""
        return ()

    @cached_property
    def template(self) -> str:
        """USER_PROMPT of prompts.yaml.

        Raises:
            FileNotFoundError: it is not beside the data. ValueError: it has no such text.
        """
        file = self.folder / "prompts.yaml"
        if not file.is_file():
            raise FileNotFoundError(f"no file {file}: put the benchmark's prompts.yaml there, as it is published")
        try:
            found = yaml.safe_load(file.read_text(encoding="utf-8"))
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ValueError(f"{file}: not YAML ({error})") from error
        if not isinstance(found, dict) or not isinstance(found.get("USER_PROMPT"), str):
            raise ValueError(f"{file}: expected a mapping with the text USER_PROMPT")
        return found["USER_PROMPT"]

    def _score(self, answer: str, references: Sequence[str]) -> float:
        return self.figures(answer, references)["score"]

    def _asked(self, row: Record) -> Asked:
        try:
            return Asked(self.template.format(**self.values(row)))
        except (KeyError, IndexError) as error:
            raise ValueError(f"{self.NAME}: prompts.yaml asks for {error}, which the rows do not give") from error


def tagged(answer: str, tag: str) -> str | None:
    """What stands between the first <tag> and the first </tag>; None where either is missing."""
    start, end = answer.find(f"<{tag}>"), answer.find(f"</{tag}>")
    return None if -1 in (start, end) else answer[start + len(tag) + 2 : end].strip()
