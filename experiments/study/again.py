"""Measuring cells anew: they are gathered in a file of their own, and take the place of the former ones once all are there."""

import json
from pathlib import Path

from experiments.files import write_atomically
from experiments.rows import key, read
from experiments.study.cell import NAMES, study


def beside(path: Path) -> Path:
    """`out/F.jsonl` -> `out/F.again.jsonl`: what a killed run measured anew, which the next one goes on with."""
    return path.with_name(f"{path.stem}.again.jsonl")


def replace(path: Path) -> int:
    """Put the rows of `beside(path)` in place of those of the same cells; others stay. Returns how many came.

    Raises:
        OSError: a file cannot be read or written.   ValueError: a line that is no row.
    """
    new = read(beside(path), study)
    cells = {key(row, NAMES) for row in new}
    old = read(path, study) if path.is_file() else []
    rows = [row for row in old if key(row, NAMES) not in cells] + list(new)
    write_atomically(path, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows).encode())
    beside(path).unlink()
    return len(new)
