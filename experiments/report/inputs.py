"""What `kvjax report` is given: result files of sweeps, the traces beside them, and results of `kvjax bench`."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments import traces
from experiments.files import read as read_whole
from experiments.row_checks import bench, trace
from experiments.rows import Row, parse, read

#: What a benchmark's figures are worth nothing without.
CONDITIONS = ("dtype", "shape", "machine", "commit", "versions")


@dataclass(frozen=True)
class Inputs:
    """files: as given.   rows: of each result file.   traces: of all.   benches: by file name, what `kvjax bench --json` wrote."""

    files: tuple[Path, ...]
    rows: Mapping[Path, list[Row]]
    traces: list[Row]
    benches: Mapping[str, Mapping[str, Any]]

    @property
    def all_rows(self) -> list[Row]:
        return [row for found in self.rows.values() for row in found]


def gather(files: Sequence[Path]) -> Inputs:
    """Read all files; a JSON object with a "bench" is a benchmark, anything else must be result rows.

    Raises:
        OSError: a file cannot be read. ValueError: it is neither, or there is not one result in all.
    """
    rows, traced, benches = {}, [], {}
    for file in files:
        bench = _bench(file)
        if bench is not None:
            benches[file.name] = bench
            continue
        rows[file] = read(file)
        traced += _traces(file)
    if not benches and not any(rows.values()):
        raise ValueError(f"no result rows in {', '.join(map(str, files)) or 'no file'}: run `kvjax sweep` first")
    return Inputs(tuple(files), rows, _distinct(traced), benches)


def _bench(file: Path) -> Mapping[str, Any] | None:
    try:
        found = json.loads(read_whole(file))
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict) or "bench" not in found:
        return None
    missing = [name for name in CONDITIONS if name not in found]
    if missing:
        raise ValueError(f"{file} is a benchmark without {', '.join(missing)}: run `kvjax bench` again")
    try:
        bench(found)
    except ValueError as error:
        raise ValueError(f"{file} is no result of `kvjax bench` ({error}): run it again") from error
    return found


def _traces(file: Path) -> list[Row]:
    beside = traces.beside(file)
    if not beside.is_file():
        return []
    data = beside.read_bytes()
    return parse(data[: data.rfind(b"\n") + 1], beside, trace)


def _distinct(found: list[Row]) -> list[Row]:
    """Of one cell the first: of several seeds one prompt is shown, and the same file given twice counts once."""

    def name(t: Row) -> tuple:
        return (t["model"], t["dtype"], t["task"], t["mode"], t["length"], t["policy"], t["budget"])

    return list({name(trace): trace for trace in reversed(found)}.values())[::-1]
