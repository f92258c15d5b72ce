"""The report as one HTML page that needs no network: pictures inside it, tables that sort and filter, commands and versions."""

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from experiments.pages import environment
from experiments.pages.charts import Charts
from experiments.pages.table import Cell, Head
from experiments.rows import Row


@dataclass(frozen=True)
class Line:
    """A row of a table; `marked` sets it off; method and budget are what it is filtered by, `key` is its point in a chart."""

    cells: Sequence[Cell]
    marked: bool = False
    method: str = ""
    budget: str = ""
    key: str = ""


@dataclass(frozen=True)
class Shown:
    """A picture inside the page: a `data:` address, what stands below it, what it shows in words."""

    data: str
    caption: str
    alt: str


@dataclass(frozen=True)
class Block:
    """A table with its title, the note below it and its pictures."""

    title: str
    heads: Sequence[Head]
    rows: Sequence[Line]
    note: str = ""
    pictures: Sequence[Shown] = ()
    key: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page that its navigation leads to."""

    id: str
    title: str
    note: str = ""
    pictures: Sequence[Shown] = ()
    tables: Sequence[Block] = ()


def shown(picture: Any) -> Shown:
    """A picture on disk (`experiments.pictures.canvas.Picture`) as the page has it: its bytes in the address."""
    data = base64.b64encode(Path(picture.path).read_bytes()).decode()
    return Shown(f"data:image/png;base64,{data}", picture.caption, picture.alt)


def render(
    title: str, sections: Sequence[Section], *,
    command: str, commands: Mapping[str, Sequence[str]], rows: Sequence[Row], charts: Charts | None = None,
) -> str:  # fmt: skip
    """The page.

    Args:
        title: of the page.   sections: what it shows, in order; empty ones are left out.
        command: the one that wrote it.   commands: by file, those that measure its rows again.
        rows: where versions, commits, machines and texts are taken from.   charts: those of the tables with a key, or None.
    """
    return environment().get_template("report.html").render(
        title=title,
        sections=[section for section in sections if section.pictures or section.tables],
        budgets=_budgets(sections),
        charts=charts,
        command=command,
        commands=[(name, lines) for name, lines in commands.items() if lines],
        origins=origins(rows),
    )


def _budgets(sections: Sequence[Section]) -> list[str]:
    """The budgets of all lines, from large to small; slots after shares."""
    lines = [line for section in sections for table in section.tables for line in table.rows]
    found = {line.budget for line in lines if line.method and line.budget != "-"}
    return sorted(found, key=lambda text: ("." not in text, -float(text)))


def origins(rows: Sequence[Row]) -> list[dict[str, str]]:
    """Each distinct origin with the number of its rows: model, text, commit, machine and versions."""
    counts: dict[tuple, int] = {}
    for row in rows:
        versions = ", ".join(f"{name} {version}" for name, version in row.get("versions", {}).items())
        known = (f"{row['model']} ({row['dtype']})", row.get("text"), row["seed"], row.get("commit"), row.get("machine"), versions)
        counts[known] = counts.get(known, 0) + 1
    names = ("model", "text", "seed", "commit", "machine", "versions")

    def word(value: object) -> str:
        return "not recorded" if value in (None, "") else str(value)

    return [
        {"rows": str(count)} | dict(zip(names, map(word, known), strict=True)) for known, count in counts.items()
    ]
