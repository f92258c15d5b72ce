"""A leaderboard's folder: rows.jsonl, which the sweep writes, and leaderboard.csv and leaderboard.html, made of it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.files import write_atomically
from experiments.leaderboard import table
from experiments.leaderboard.board import Place, places
from experiments.leaderboard.page import render
from experiments.leaderboard.repeat import by_cell
from experiments.leaderboard.repeat import command as repeat
from experiments.report.page import origins
from experiments.rows import Row

ROWS, CSV, PAGE = "rows.jsonl", "leaderboard.csv", "leaderboard.html"


@dataclass(frozen=True)
class Written:
    """What was written, and the places in it."""

    csv: Path
    page: Path
    places: tuple[Place, ...]


def write(
    rows: Sequence[Row], folder: Path, *, left_out: Mapping[str, str], command: str, again: Path | None = None
) -> Written:
    """Write the table and the page of `rows`; each is the old one or the new one, never half of one.

    Args:
        rows: result rows of one sweep.   folder: where to.
        left_out: methods that were not measured, and why.   command: the one that asks for it.
        again: the folder that the commands which measure a place again write to; `folder` if None.

    Raises:
        ValueError: no rows, or rows that do not compare. ImportError: the extra `pages` is missing.
        OSError: a file cannot be written.
    """
    if not rows:
        raise ValueError(f"no result rows in {folder / ROWS}: nothing was measured")
    found, cells = places(rows), by_cell(rows)
    repeats = [repeat(place, cells, again or folder) for place in found]
    text = table.text([table.line(place, line) for place, line in zip(found, repeats, strict=True)])
    page = render(found, repeats, left_out=left_out, command=command, origins=origins(rows))
    return Written(
        write_atomically(folder / CSV, text.encode()), write_atomically(folder / PAGE, page.encode()), tuple(found)
    )
