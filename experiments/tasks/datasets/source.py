"""Rows of a data set, from a file in its official layout: one that is here, or one that the package `datasets` fetches.

A file is `.jsonl`, an object a line, or `.json`, an array of objects. Rows are JSON as the benchmark wrote it: the package only
fetches, because its tables would turn the integers of a column with decimals into floats.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from experiments.tasks.dataset_files import Record, datasets_folder


class Source(Protocol):
    """Where a file of rows is."""

    def path(self) -> Path: ...


@dataclass(frozen=True)
class Local:
    """A file of this machine."""

    file: Path

    def path(self) -> Path:
        """The file. Raises FileNotFoundError where there is none."""
        if not self.file.is_file():
            raise FileNotFoundError(f"no file {self.file}: put the benchmark's {self.file.name} there, as it is published")
        return self.file


@dataclass(frozen=True)
class Hub:
    """A file of the Hugging Face hub, such as hf://datasets/OWNER/NAME/FILE; `member` is a path inside it, if it is an archive."""

    url: str
    member: str = ""

    def path(self) -> Path:
        """The fetched file, kept in `datasets_folder()`. Raises ModuleNotFoundError without `datasets`, OSError unfetched."""
        try:
            import datasets
        except ModuleNotFoundError as error:
            raise ModuleNotFoundError(f"{self.url} is fetched with the package datasets: pip install datasets") from error
        manager = datasets.DownloadManager(download_config=datasets.DownloadConfig(cache_dir=datasets_folder() / "fetched"))
        try:
            if not self.member:
                return Path(manager.download(self.url))
            return Local(Path(manager.download_and_extract(self.url)) / self.member).path()
        except Exception as error:  # the package lets through those of its network client, of the hub and of archives
            raise OSError(f"cannot fetch {self.url}: {error}") from error


@dataclass(frozen=True)
class LocalOrHub:
    """The file of this machine where it is there, else the hub's."""

    local: Local
    hub: Hub

    def path(self) -> Path:
        """The file. Raises FileNotFoundError, saying both ways to get it, where neither has it."""
        if self.local.file.is_file():
            return self.local.path()
        try:
            return self.hub.path()
        except (ModuleNotFoundError, OSError) as error:
            raise FileNotFoundError(f"no file {self.local.file}: put the published file there, or else: {error}") from error


def rows(source: Source, fields: tuple[str, ...]) -> Sequence[Record]:
    """All rows, each checked for `fields`.

    Raises:
        FileNotFoundError, ModuleNotFoundError, OSError: the file cannot be had.
        ValueError: it holds no rows, or a row that is no JSON object or lacks a field; names the file and the line.
    """
    path = source.path()
    found = Lines(path, _starts(path, fields)) if path.suffix == ".jsonl" else _array(path, fields)
    if not len(found):
        raise ValueError(f"{path} holds no rows")
    return found


class Lines(Sequence[Record]):
    """Rows of a `.jsonl` file, read from disk when asked for: files of whole books are larger than memory should hold."""

    def __init__(self, path: Path, starts: Sequence[int]) -> None:
        self.path, self.starts = path, starts

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> Record:
        with self.path.open("rb") as file:
            file.seek(self.starts[index])
            return json.loads(file.readline())


def _starts(path: Path, fields: tuple[str, ...]) -> list[int]:
    """Where each row begins, in bytes; every row is read once and checked."""
    starts, at = [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                _check(_parsed(line, f"{path}, line {number}"), fields, f"{path}, line {number}")
                starts.append(at)
            at += len(line)
    return starts


def _array(path: Path, fields: tuple[str, ...]) -> list[Record]:
    found = _parsed(path.read_bytes(), str(path))
    if not isinstance(found, list):
        raise ValueError(f"{path}: expected a JSON array of rows, got {type(found).__name__}")
    for number, row in enumerate(found):
        _check(row, fields, f"{path}, row {number}")
    return found


def _parsed(text: bytes, where: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:  # not JSON, or not UTF-8
        raise ValueError(f"{where}: not JSON ({error})") from error


def _check(row: Any, fields: tuple[str, ...], where: str) -> None:
    if not isinstance(row, dict):
        raise ValueError(f"{where}: expected a JSON object, got {type(row).__name__}")
    lacking = [name for name in fields if name not in row]
    if lacking:
        raise ValueError(f"{where}: the row has no field {', '.join(map(repr, lacking))}, only {', '.join(row) or 'none'}")
