"""Result rows: a JSONL file that a kill, a full disk or a second run never leaves doubled, torn or mixed.

A row is written in one piece and flushed to disk before the next is measured. What a killed run left of its last line
is cut off when the file is opened again.
"""

import errno
import fcntl
import json
import lzma
import math
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments import files
from experiments.row_checks import Check, result
from models.numbers import one_line

#: What tells one cell of one prompt from another.
KEY = ("task", "mode", "length", "prompt", "policy_repr", "budget", "seed")
#: What all rows of a file must share, so that a report never averages unlike things.
IDENTITY = ("model", "dtype", "prompts")

#: The ending of result files that are kept packed.
PACKED = ".xz"

Row = Mapping[str, Any]


def key(row: Row, names: Sequence[str] = KEY) -> tuple:
    """The cell a row measures."""
    return tuple(row[name] for name in names)


class Found:
    """The cells that a result file holds, as `in` asks for them; none where there is no file. The file is only read.

    Args:
        path: the JSONL file.
        identity: the values of IDENTITY for this run, and "weights", the mark of its model's, where it is known.
        check: what its rows must be (`experiments.row_checks`).
        names: the fields that tell one cell from another.

    Raises:
        ValueError: the file holds rows of another identity, of other weights under the model's name (rows that do not tell them
            are taken at their word), of two versions of a data set, or a line that is no row.
    """

    def __init__(self, path: str | Path, identity: Row, check: Check = result, names: Sequence[str] = KEY) -> None:
        self.path, self._check, self._names = Path(path), check, names
        self._identity = {name: identity[name] for name in IDENTITY}
        self._weights = identity.get("weights")
        self._data: dict[str, str] = {}
        self._keys = {self._checked(row) for row in self._rows()}

    def __contains__(self, cell: tuple) -> bool:
        return cell in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    def expect(self, task: str, data: str | None) -> None:
        """See that the rows of `task` were measured on `data`, a digest of its files; None, and rows without one, say nothing.

        Raises:
            ValueError: they were measured on other data.
        """
        held = self._data.get(task, data) if data else data
        if held != data:
            raise ValueError(
                f"the data files of {task} changed: {self.path} has rows measured on {held} (SHA-256), here is {data}: "
                "put the former files back, or choose another --out"
            )
        if data:
            self._data[task] = data

    def _rows(self) -> list[Row]:
        return read(self.path, self._check) if self.path.is_file() else []

    def _checked(self, row: Row) -> tuple:
        """The row's cell, once it is seen to belong here."""
        for name, mine in self._identity.items():
            if row.get(name) != mine:
                raise ValueError(
                    f"{self.path} has rows with {name} {row.get(name)!r}, this sweep has {mine!r}: choose another --out"
                )
        weights = row.get("weights", self._weights)
        if self._weights is not None and weights != self._weights:
            raise ValueError(
                f"{self.path} has rows of other weights under the name {row['model']!r} (their mark is {weights}, here it is "
                f"{self._weights}): choose another --out, or load the weights that they are of"
            )
        self.expect(row["task"], row.get("data"))
        return key(row, self._names)


class RowFile(Found):
    """An open result file; `append` adds a cell for good.

    Args:
        path: the JSONL file, made with its folders if absent.
        identity: the values of IDENTITY for this run.
        check: what its rows must be.   names: the fields that tell one cell from another.

    Raises:
        ValueError: as `Found`, and for the name of a packed file.
        OSError: it cannot be opened, or another sweep is writing it.
    """

    def __init__(self, path: str | Path, identity: Row, check: Check = result, names: Sequence[str] = KEY) -> None:
        path = Path(path)
        if path.name.endswith(PACKED):
            raise ValueError(f"{path}: rows are appended to plain JSONL; choose an --out that does not end in {PACKED}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise OSError(f"{path} cannot be written: its folder cannot be made ({error})") from error
        self._file = open(path, "ab+", buffering=0)
        try:
            self._lock(path)
            super().__init__(path, identity, check, names)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> "RowFile":
        return self

    def __exit__(self, *exc: object) -> None:
        self._file.close()

    def append(self, row: Row) -> None:
        """Write one row and flush it to disk; a row whose cell is there already is refused.

        Raises:
            ValueError: the cell is there already, its task has rows of other data, or a number of the row is not finite.
            OSError: disk full or file gone; the file holds whole rows only.
        """
        cell = key(row, self._names)
        if cell in self._keys:
            raise ValueError(f"{self.path} already holds the cell {cell}")
        wrong = {name: value for name, value in row.items() if isinstance(value, float) and not math.isfinite(value)}
        if wrong:
            raise ValueError(
                f"the cell {cell} was measured as {wrong}: numbers of rows are finite; the rows so far are kept. Narrow dtypes "
                "overflow: try --dtype float32, or leave this policy out"
            )
        self.expect(row["task"], row.get("data"))
        end = os.fstat(self._file.fileno()).st_size
        line = (json.dumps(row, allow_nan=False) + "\n").encode()
        try:
            if self._file.write(line) != len(line):
                raise OSError("the disk is full")
            _to_disk(self._file.fileno())
        except OSError as error:
            self._cut(end)
            raise OSError(f"cannot write {self.path}: {error.strerror or error}; rows so far are whole") from error
        self._keys.add(cell)

    def _lock(self, path: Path) -> None:
        if not path.is_file():  # rows and traces may both go to one device or pipe
            return
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"{path} is being written by another sweep: choose another --out") from error

    def _rows(self) -> list[Row]:
        """What is there; what a killed run left of its last line is cut off."""
        if not self.path.is_file():
            return []
        self._file.seek(0)
        data = self._file.readall()
        whole = data[: data.rfind(b"\n") + 1]
        if len(whole) < len(data):
            self._cut(len(whole))
        return parse(whole, self.path, self._check)

    def _cut(self, size: int) -> None:
        if self.path.is_file():
            os.ftruncate(self._file.fileno(), size)


def read(path: str | Path, check: Check = result) -> list[Row]:
    """The rows of a result file, packed where its name ends in `.xz`; a torn last line, as a killed run leaves, is passed over.

    Raises:
        OSError: it cannot be read. ValueError: a line before the last is no row, or it cannot be unpacked.
    """
    data = files.read(path)
    if Path(path).suffix == PACKED:
        data = _unpacked(data, path)
    return parse(data[: data.rfind(b"\n") + 1], path, check)


def pack(rows: Sequence[Row], path: str | Path) -> Path:
    """Write rows, packed by xz: a line differs little from the one before it, and ten thousand take less than a megabyte.

    Raises:
        OSError: the file cannot be written.
    """
    lines = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    return files.write_atomically(path, lzma.compress(lines.encode(), preset=9))


def _unpacked(data: bytes, path: str | Path) -> bytes:
    try:
        return lzma.decompress(data)
    except lzma.LZMAError as error:
        raise ValueError(f"{path} is no file that xz packed ({error}): measure again, or choose another file") from error


def parse(data: bytes, path: str | Path, check: Check = result) -> list[Row]:
    """Whole lines of JSON -> rows, each of which `check` has passed."""
    rows = []
    for number, line in enumerate(data.splitlines(), 1):
        try:
            row = json.loads(line)
            check(row)
        except (ValueError, RecursionError) as error:
            what = f"{path} line {number} is not a {check.__name__} row of kvjax ({one_line(error)})"
            raise ValueError(f"{what}: remove the line, or choose another file") from error
        rows.append(row)
    return rows


def _to_disk(handle: int) -> None:
    try:
        os.fsync(handle)
    except OSError as error:
        if error.errno != errno.EINVAL:  # a device or a pipe has no disk behind it
            raise
