"""`kvjax report`'s folder: table.md, the pictures and the page that holds them all."""

import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from experiments.files import write_atomically
from experiments.pages.charts import Charts
from experiments.pictures import bars, budgets, drift, heatmap, memory_curve, retention
from experiments.pictures.canvas import Picture
from experiments.report import blocks
from experiments.report.charts import none
from experiments.report.comparison import Comparison, compare, setting
from experiments.report.inputs import Inputs
from experiments.report.page import Section, render, shown
from experiments.report.reproduce import commands
from experiments.report.tables import Table


@dataclass(frozen=True)
class Written:
    """The page, every picture's file, and the numbers of the page's tables."""

    page: Path
    pictures: tuple[Path, ...]
    comparisons: tuple[Comparison, ...]


def write(
    inputs: Inputs, found: Sequence[Table], baseline: str, folder: Path,
    charts: Callable[[Sequence[Comparison]], Charts | None] = none,
) -> Written:  # fmt: skip
    """Draw every picture that `inputs` has something for, and write index.html.

    Args:
        inputs, found: rows, traces and benchmarks; the tables of the rows.   baseline: whom the others are compared with.
        charts: `report.charts.interactive`, or `none`.

    Raises:
        ValueError: rows that do not compare. ImportError: charts without their library. OSError: a file cannot be written.
    """
    rows = inputs.all_rows
    compared = compare(rows, baseline)
    drawn: list[Picture] = []

    def keep(pictures: Sequence[Picture]) -> list:
        drawn.extend(pictures)
        return [shown(picture) for picture in pictures]

    sections = [
        *(_scores(table, [c for c in compared if setting(c) == setting(table)], folder, keep) for table in found),
        Section("needles", "Needles by depth and length", DEPTH, keep(heatmap.draw(rows, folder))),
        Section("budgets", "Budgets of layers and heads", BUDGETS, keep(budgets.draw(inputs.traces, folder))),
        Section("retention", "What was kept along the text", RETENTION, keep(retention.draw(inputs.traces, folder))),
        Section("drift", "Drift and retrieval", DRIFT, keep(drift.draw(inputs.traces, folder))),
        Section("benchmarks", "Benchmarks", BENCHES, tables=list(_benches(inputs, folder, keep))),
    ]
    names = sorted({table.model for table in found}) or sorted(inputs.benches)
    page = render(
        f"kvjax report: {', '.join(names)}",
        sections,
        command=_command(inputs, folder, baseline, charts is not none),
        commands={str(file): commands(of_file, file) for file, of_file in inputs.rows.items()},
        rows=rows,
        charts=charts(compared),
    )
    paths = tuple(picture.path for picture in drawn)
    return Written(write_atomically(folder / "index.html", page.encode()), paths, tuple(compared))


DEPTH = "Depth is the needle's place in the text, from 0 (its beginning); grey: no prompt there."
BUDGETS = "Of prompt 0 of each task, length and cell. Methods that keep the whole prompt are left out."
RETENTION = "Of prompt 0: yellow stretches are held by all heads of a layer, blue ones by none."
DRIFT = "Of prompt 0: what made HeteroCache fetch satellites' tokens from host memory. Grey: windows that were not judged."
BENCHES = "Each contestant timed alone on an idle machine, in turns."


def _scores(table: Table, compared: Sequence[Comparison], folder: Path, keep: Callable) -> Section:
    title = f"{table.model} ({table.dtype}), {table.length} tokens"
    curves = keep(memory_curve.draw(table, folder))
    made = [blocks.comparison(found, keep([bars.of_cells(found, folder)])) for found in compared]
    return Section(f"scores-{table.model}-{table.dtype}-{table.length}".replace("/", "-"), title, pictures=curves, tables=made)


def _benches(inputs: Inputs, folder: Path, keep: Callable) -> Iterator[blocks.Block]:
    for name, bench in inputs.benches.items():
        picture = bars.of_bench(name, bench, folder)
        yield blocks.ratios(name, bench, keep([picture] if picture else []))


def _command(inputs: Inputs, folder: Path, baseline: str, charts: bool) -> str:
    words = ["kvjax", "report", *map(str, inputs.files), "--out", str(folder)]
    words += ["--charts"] if charts else []
    return shlex.join([*words, *(["--baseline", baseline] if baseline != "full" else [])])
