"""Rows of a published data set, read from its files in their official layout.

A file is `.jsonl`, an object a line, `.json`, an array of objects, or `.parquet`, a table. Rows are as the benchmark wrote them:
the package `datasets` only fetches, because its tables would turn the integers of a JSON column with decimals into floats.
"""

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import chain
from pathlib import Path
from typing import Any

from experiments.provenance import digest
from experiments.tasks.dataset_files import Record
from experiments.tasks.datasets.source import Source


@dataclass(frozen=True)
class Data:
    """Files whose rows are checked: `rows` in order, and of all bytes a `digest`, by which result rows name them."""

    paths: tuple[Path, ...]
    rows: Sequence[Record]

    @cached_property
    def digest(self) -> str:
        """Twelve hexadecimal digits of the SHA-256 of the files, one after the other."""
        return digest(part for path in self.paths for part in _parts(path))


def _parts(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        yield from iter(partial(file.read, 2**20), b"")


def load(source: Source, fields: tuple[str, ...]) -> Data:
    """All rows, each checked for `fields`.

    Raises:
        FileNotFoundError, ModuleNotFoundError, OSError: a file cannot be had.
        ValueError: one holds no rows, or a row that is no object or lacks a field; names the file and the line.
    """
    paths = source.paths()
    parts = [_rows(path, fields) for path in paths]
    return Data(paths, parts[0] if len(parts) == 1 else list(chain.from_iterable(parts)))


def _rows(path: Path, fields: tuple[str, ...]) -> Sequence[Record]:
    kinds = {".jsonl": _lines, ".json": _array, ".parquet": _table}
    if path.suffix not in kinds:
        raise ValueError(f"{path}: a file of rows ends in {', '.join(kinds)}, not {path.suffix!r}")
    found = kinds[path.suffix](path, fields)
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


def _lines(path: Path, fields: tuple[str, ...]) -> Lines:
    """Where each row begins, in bytes; every row is read once and checked."""
    starts, at = [], 0
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            if line.strip():
                _check(_parsed(line, f"{path}, line {number}"), fields, f"{path}, line {number}")
                starts.append(at)
            at += len(line)
    return Lines(path, starts)


def _array(path: Path, fields: tuple[str, ...]) -> list[Record]:
    found = _parsed(path.read_bytes(), str(path))
    if not isinstance(found, list):
        raise ValueError(f"{path}: expected a JSON array of rows, got {type(found).__name__}")
    return _checked(path, found, fields)


def _table(path: Path, fields: tuple[str, ...]) -> list[Record]:
    try:
        import pyarrow.parquet
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(f"{path} is read with pyarrow, which comes with: pip install datasets") from error
    try:
        found = pyarrow.parquet.read_table(path).to_pylist()
    except pyarrow.ArrowException as error:
        raise ValueError(f"{path}: not a whole parquet file ({error})") from error
    return _checked(path, found, fields)


def _checked(path: Path, found: list[Any], fields: tuple[str, ...]) -> list[Record]:
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
