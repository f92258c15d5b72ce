"""Published data sets: files in their official layout in one folder, or the hub through the optional package `datasets`."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

Record = dict[str, Any]


def datasets_folder() -> Path:
    """`datasets` in KVJAX_CACHE, else in ~/.cache/kvjax."""
    root = os.environ.get("KVJAX_CACHE") or Path.home() / ".cache" / "kvjax"
    return Path(root) / "datasets"


class Records(Protocol):
    """Where a task's questions come from."""

    def read(self, split: str) -> list[Record]: ...


@dataclass(frozen=True)
class JsonLines:
    """`SPLIT.jsonl` files of a folder, a JSON object a line."""

    folder: Path

    def read(self, split: str) -> list[Record]:
        """Records of a split. Raises FileNotFoundError where there is none, ValueError for a line that is no object."""
        file = self.folder / f"{split}.jsonl"
        if not file.is_file():
            raise FileNotFoundError(f"no file {file}: put the data set's {split}.jsonl there, an object a line")
        lines = file.read_text(encoding="utf-8").split("\n")
        return [_record(file, number, line) for number, line in enumerate(lines, 1) if line.strip()]


@dataclass(frozen=True)
class Hub:
    """A data set of the Hugging Face hub; of several configurations the splits follow one another."""

    name: str
    configs: tuple[str, ...]

    def read(self, split: str) -> list[Record]:
        """Records of a split. Raises ModuleNotFoundError without the package `datasets`."""
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{self.name} is read with the package datasets: pip install datasets") from error
        return [dict(row) for config in self.configs for row in datasets.load_dataset(self.name, config, split=split)]


@dataclass(frozen=True)
class FolderOrHub:
    """The folder's files where it has the split, else the hub's."""

    folder: JsonLines
    hub: Hub

    def read(self, split: str) -> list[Record]:
        """Records of a split. Raises FileNotFoundError where neither has it."""
        if (self.folder.folder / f"{split}.jsonl").is_file():
            return self.folder.read(split)
        try:
            return self.hub.read(split)
        except ModuleNotFoundError as error:
            wanted = self.folder.folder / f"{split}.jsonl"
            raise FileNotFoundError(f"no file {wanted}: put the data set's {split} split there, or {error}") from error


def require(record: Record, fields: Sequence[str], where: str) -> Record:
    """The record. Raises ValueError where it lacks a field."""
    lacking = [name for name in fields if name not in record]
    if lacking:
        raise ValueError(f"{where}: a record has no {', '.join(map(repr, lacking))}, only {', '.join(record)}")
    return record


def _record(file: Path, number: int, line: str) -> Record:
    try:
        found = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{file}, line {number}: not JSON ({error})") from error
    if not isinstance(found, dict):
        raise ValueError(f"{file}, line {number}: expected a JSON object, got {type(found).__name__}")
    return found
