"""The page of the comparative study: its tables from the committed cells and the committed answers."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

from experiments.leaderboard.pack import COMMITTED
from experiments.result_pages.standing import clean, said, shown
from experiments.rows import Row, read
from experiments.study import quality
from experiments.study.cell import of_row
from experiments.study.cell import study as check
from experiments.study.rates import Load
from experiments.study.show import page as tables

ROOT = Path(__file__).parents[2]
ROWS = ROOT / "experiments" / "results" / "study.jsonl"
#: Committed answers of the same prompts.
ANSWERS = (ROWS.with_name("bits.jsonl"), COMMITTED)
#: What the page simulates.
LOAD = Load(rates=(0.05, 0.1, 0.2, 0.4), memory=200_000_000)

_ABOUT = """Systems that manage a cache in different ways under one protocol, after arXiv 2604.05012: everything on the device
(`full`), the same in pages (`paged`), eviction (`h2o`), recall from host memory (`infinigen`, with at most a half and at most a
quarter of the prompt fetched for every head and step, `alpha=1e3` so that the cap alone decides, without a calibrated skew), fewer
bits (`kivi`). Where the paper has three engines on a card, these are policies of one library on one processor: bytes and quality
carry over, times are this machine's, where host and device memory are one and a fetch is a copy."""


def page() -> str:
    """docs/results/study.md."""
    lines = ["# Comparative study", "", _ABOUT, ""]
    if not ROWS.is_file():
        return "\n".join([*lines, "No rows yet.", ""])
    rows, own = read(ROWS, check), shown(quality.beside(ROWS))
    answers = [row for path in ANSWERS for row in shown(path)]
    lines += [_said(rows, own), ""]
    lines += tables([of_row(row) for row in rows], quality.of_rows([*own, *answers], rows[0]), LOAD)
    return "\n".join([*lines, "## Measured again", "", "```bash", *commands(rows, own), "```", ""])


def commands(rows: Sequence[Row], own: Sequence[Row]) -> list[str]:
    """The command that measures all of it, and the one that measures bytes and times anew."""
    words = ["kvjax", "study", "--model", rows[0]["model"], "--dtype", rows[0]["dtype"]]
    words += ["--policies", _joined(row["policy"] for row in rows), "--budgets", _joined(_budgets(rows))]
    words += ["--lengths", _joined(row["length"] for row in rows), "--batches", _joined(row["batch"] for row in rows)]
    words += ["--new", str(rows[0]["new"]), "--rounds", str(len(rows[0]["step_seconds"]))]
    words += ["--prompts", str(1 + max((row["prompt"] for row in own), default=0))]
    words += ["--answers", _joined(path.relative_to(ROOT) for path in ANSWERS), "--out", str(ROWS.relative_to(ROOT))]
    return [shlex.join(words), shlex.join([*words, "--times-only"])]


def _said(rows: Sequence[Row], own: Sequence[Row]) -> str:
    """Where cells and answers come from, in two sentences."""
    first, dirty = rows[0], sum(not clean(row) for row in rows)
    where = "at commits without changes" if not dirty else f"{dirty} of them not from a commit without changes"
    machines = ", ".join(sorted({row["machine"] for row in rows}))
    answers = f"Answers: {said(own)} Others are those of [bits](bits.md) and of the [leaderboard](leaderboard.md)."
    return f"{first['model']}, {first['dtype']}, on {machines}: {len(rows)} cells, {where}. {answers}"


def _budgets(rows: Sequence[Row]) -> list[int | float]:
    """Those of policies that have one, from large to small."""
    found = {row["budget"] for row in rows if row["budget"] != 1.0} or {1.0}
    return sorted(found, reverse=True)


def _joined(values: Iterable[object]) -> str:
    return ",".join(map(str, dict.fromkeys(values)))
