"""The page of the comparative study: its tables from the committed cells and the committed answers."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.result_pages.standing import clean, said, shown
from experiments.rows import Row, read
from experiments.study import quality
from experiments.study.cell import of_row
from experiments.study.cell import study as check
from experiments.study.rates import Load
from experiments.study.show import page as tables

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results" / "study.jsonl"
#: What the page simulates.
LOAD = Load(rates=(0.05, 0.1, 0.2, 0.4), memory=200_000_000)

_ABOUT = """Systems that manage a cache in different ways under one protocol, after arXiv 2604.05012: everything on the device
(`full`), the same in pages (`paged`), eviction (`h2o`), recall from host memory (`infinigen`, with the published threshold and with
a fixed share of the prompt fetched for every head and step, without a calibrated skew), fewer bits (`kivi`). Where the paper has
three engines on a card, these are policies of one library on one processor: bytes and quality carry over, times are this
machine's."""


def page() -> str:
    """docs/results/study.md."""
    lines = ["# Comparative study", "", _ABOUT, ""]
    if not ROWS.is_file():
        return "\n".join([*lines, "No rows yet.", ""])
    rows, answers = read(ROWS, check), shown(quality.beside(ROWS))
    lines += [f"{_said(rows)} Answers: {said(answers)}", ""]
    lines += tables([of_row(row) for row in rows], quality.of_rows(answers), LOAD)
    return "\n".join([*lines, "## Measured again", "", "```bash", *commands(rows, answers), "```", ""])


def commands(rows: Sequence[Row], answers: Sequence[Row]) -> list[str]:
    """The command that measures all of it, and the one that measures bytes and times anew."""
    words = ["kvjax", "study", "--model", rows[0]["model"], "--dtype", rows[0]["dtype"]]
    words += ["--policies", _joined(row["policy"] for row in rows), "--budgets", _joined(_budgets(rows))]
    words += ["--lengths", _joined(row["length"] for row in rows), "--batches", _joined(row["batch"] for row in rows)]
    words += ["--new", str(rows[0]["new"]), "--rounds", str(len(rows[0]["step_seconds"]))]
    words += ["--prompts", str(1 + max((row["prompt"] for row in answers), default=0)), "--out", str(ROWS.relative_to(ROOT))]
    return [shlex.join(words), shlex.join([*words, "--times-only"])]


def _said(rows: Sequence[Row]) -> str:
    first, dirty = rows[0], sum(not clean(row) for row in rows)
    where = "at commits without changes" if not dirty else f"{dirty} of them not from a commit without changes"
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    return f"{first['model']}, {first['dtype']}, on {machines}: {len(rows)} cells, {where}."


def _budgets(rows: Sequence[Row]) -> list[int | float]:
    """Those of policies that have one, from large to small."""
    found = {row["budget"] for row in rows if row["budget"] != 1.0} or {1.0}
    return sorted(found, reverse=True)


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, dict.fromkeys(values)))
