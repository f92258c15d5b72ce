"""The command that measures one place of a leaderboard again, and no other."""

import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from experiments.leaderboard.board import Place, share_of
from experiments.leaderboard.cells import slots
from experiments.report.reproduce import PACKAGED, line, plans
from experiments.report.tables import column
from experiments.rows import Row

#: (model, dtype, length, policy, budget, task with its mode) -> its rows.
Cells = Mapping[tuple, Sequence[Row]]


def by_cell(rows: Sequence[Row]) -> Cells:
    """Rows by what a place is made of."""
    cells: dict[tuple, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["model"], row["dtype"], row["length"], row["policy"], row["budget"], column(row)), []).append(row)
    return cells


def command(place: Place, cells: Cells, folder: Path) -> str:
    """`kvjax leaderboard` for this method, budget, task and number of prompts, into a folder of its own inside `folder`."""
    e = place.entry
    common = (place.model, place.dtype, place.length, e.policy, e.budget)
    rows = [row for task in place.tasks for row in cells[*common, task]]
    words = ["kvjax", "leaderboard", "--model", as_asked(place.model), "--dtype", place.dtype, "--methods", e.policy]
    words += [] if place.budget == "own" else ["--budgets", place.budget]
    words += prompts_of(rows) + (["--batched"] if e.batch > 1 else [])
    return shlex.join([*words, "--out", str(folder / "again" / place.name.replace(" ", "_").replace("/", "_"))])


def commands(rows: Sequence[Row], folder: str) -> list[str]:
    """The command lines that measure these rows, and no others, into one folder each a model and length."""
    lines = []
    for plan in plans(_with_shares(rows)):
        model, _, _ = plan.common
        words = ["--methods", ",".join(plan.policies)]
        words += ["--budgets", ",".join(map(str, plan.budgets))] if plan.budgets != (1.0,) else []
        asked = replace(plan, common=(as_asked(model), *plan.common[1:]))
        lines.append(line("leaderboard", asked, [*words, "--batched", "--out", folder]))
    return lines


def _with_shares(rows: Sequence[Row]) -> Iterator[Row]:
    """Slots that a leaderboard makes of a share, where a method takes slots alone, as that share of the same model and length."""
    shares: dict[tuple, set[float]] = {}
    for row in rows:
        if isinstance(row["budget"], float) and row["budget"] < 1:
            shares.setdefault((row["model"], row["length"]), set()).add(row["budget"])
    for row in rows:
        mine = sorted(shares.get((row["model"], row["length"]), ()))
        made = isinstance(row["budget"], int) and row["budget"] in [slots(share, row["length"]) for share in mine]
        yield row | {"budget": share_of(row["budget"], row["length"], mine)} if made else row


def as_asked(model: str) -> str:
    """A model's name as `--model` takes it; of one with trained weights TRAINED stands for the folder that `kvjax train` wrote."""
    name, trained, _ = model.partition("+")
    return f"{name}+TRAINED" if trained else name


def prompts_of(rows: Sequence[Row]) -> list[str]:
    """The options that ask for the tasks and prompts of these rows."""
    modes = {row["mode"] for row in rows} - {"-"}
    seeds, tasks, lengths = (dict.fromkeys(row[name] for row in rows) for name in ("seed", "task", "length"))
    text = rows[0].get("text")
    words = ["--tasks", ",".join(tasks), *(["--question", "both" if len(modes) > 1 else modes.pop()] if modes else [])]
    words += ["--lengths", ",".join(map(str, lengths)), "--prompts", str(1 + max(row["prompt"] for row in rows))]
    words += ["--seed", ",".join(map(str, seeds))]
    return words + (["--text", text] if text and not text.startswith(PACKAGED) else [])
