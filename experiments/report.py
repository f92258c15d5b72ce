"""Rows -> one table for each model and length: every policy and budget with its bytes, every task beside the other.

Retrieval and perplexity rank methods in opposite order, so a table shows both wherever both were measured.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from experiments.rows import Row, key
from experiments.stats import Estimate, average, share

MB = 1e6


@dataclass(frozen=True)
class Score:
    """One task's estimate for one line.

    Attributes:
        kind: "share" (mean score, of which 1 is right) or "nats" (per token).
        excess: nats above the full cache, prompt by prompt; None for shares and for the full cache itself.
    """

    kind: str
    estimate: Estimate
    excess: Estimate | None = None


@dataclass(frozen=True)
class Line:
    """One policy at one budget: the share of slots kept, bytes on the device, in host memory, and of the full cache."""

    policy: str
    budget: int | float
    share: float
    allocated: float
    host: float
    full: float
    scores: dict[str, Score]


@dataclass(frozen=True)
class Table:
    """All lines of one model and length; `columns` are task names with their question modes."""

    model: str
    dtype: str
    length: int
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def tables(rows: Sequence[Row]) -> list[Table]:
    """Group rows by model, dtype and length; of a cell that appears twice (the same file given twice) one counts.

    Raises:
        ValueError: no rows, or rows of different prompts for the same model and length.
    """
    if not rows:
        raise ValueError("no result rows: run `kvjax sweep` first")
    distinct = {(row["model"], row["dtype"], *key(row)): row for row in rows}
    groups: dict[tuple, list[Row]] = {}
    for row in distinct.values():
        groups.setdefault((row["model"], row["dtype"], row["length"]), []).append(row)
    return [_table(*name, found) for name, found in sorted(groups.items())]


def column(row: Row) -> str:
    """`needle unseen`, `needle seen`, `ppl`."""
    return row["task"] if row["mode"] == "-" else f"{row['task']} {row['mode']}"


def _table(model: str, dtype: str, length: int, rows: list[Row]) -> Table:
    if len({row["prompts"] for row in rows}) > 1:
        raise ValueError(f"{model} at length {length}: rows come from different prompts or texts; report them apart")
    last = lambda name: (name.startswith("ppl"), not name.endswith("unseen"), name)  # noqa: E731
    columns = tuple(sorted({column(row) for row in rows}, key=last))
    cells: dict[tuple, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["policy"], row["budget"]), []).append(row)
    reference = {_prompt(row): row for row in rows if row["policy"] == "full"}
    lines = [_line(*cell, found, reference) for cell, found in cells.items()]
    return Table(model, dtype, length, columns, tuple(sorted(lines, key=_order)))


def _line(policy: str, budget: int | float, rows: list[Row], reference: dict[tuple, Row]) -> Line:
    by_column: dict[str, list[Row]] = {}
    for row in rows:
        by_column.setdefault(column(row), []).append(row)
    mean = lambda field: math.fsum(row[field] for row in rows) / len(rows)  # noqa: E731
    return Line(
        policy=policy,
        budget=budget,
        share=mean("kept_share"),
        allocated=mean("allocated_bytes"),
        host=mean("host_bytes"),
        full=mean("full_bytes"),
        scores={name: _score(found, reference) for name, found in by_column.items()},
    )


def _score(rows: list[Row], reference: dict[tuple, Row]) -> Score:
    if "score" in rows[0]:
        return Score("share", share([row["score"] for row in rows]))
    pairs = [(row["nll"], reference[_prompt(row)]["nll"]) for row in rows if _prompt(row) in reference]
    excess = average([mine - full for mine, full in pairs]) if pairs and rows[0]["policy"] != "full" else None
    return Score("nats", average([row["nll"] for row in rows]), excess)


def _prompt(row: Row) -> tuple:
    return (row["task"], row["mode"], row["seed"], row["prompt"])


def _order(line: Line) -> tuple[Any, ...]:
    return (line.policy != "full", line.policy, -line.share, str(line.budget))


def markdown(table: Table) -> str:
    """The table as markdown; needle scores in percent, perplexity in nats per token, each with its 95% interval."""
    heads = ["policy", "budget", "kept", "device MB", "host MB", *(_title(name) for name in table.columns)]
    body = [heads, ["---"] * 2 + ["--:"] * (len(heads) - 2)]
    body += [_cells(line, table.columns) for line in table.lines]
    title = f"**{table.model} ({table.dtype}), {table.length} tokens; full cache {table.lines[0].full / MB:.1f} MB**"
    note = (
        "MB: 10^6 bytes allocated for the prompt; host: values or whole heads kept in host memory. "
        "Intervals: 95%; of nats: of the loss against the full cache."
    )
    return "\n".join([title, "", *("| " + " | ".join(row) + " |" for row in body), "", note, ""])


def _title(name: str) -> str:
    return "ppl, nats/token" if name == "ppl" else f"{name}, score %"


def _cells(line: Line, columns: Sequence[str]) -> list[str]:
    scores = [_words(line.scores[name]) if name in line.scores else "-" for name in columns]
    budget = "-" if line.policy == "full" else f"{line.budget}"
    return [line.policy, budget, f"{100 * line.share:.1f}%", f"{line.allocated / MB:.2f}", f"{line.host / MB:.2f}", *scores]


def _words(score: Score) -> str:
    e, excess = score.estimate, score.excess
    if score.kind == "share":
        return f"{100 * e.mean:.0f} [{100 * e.low:.0f}, {100 * e.high:.0f}] n={e.count}"
    if excess is None:
        return f"{e.mean:.3f}{_half(e)} n={e.count}"
    return f"{e.mean:.3f} ({excess.mean:+.3f}{_half(excess)}) n={e.count}"


def _half(e: Estimate) -> str:
    return "" if math.isnan(e.high) else f" ± {e.high - e.mean:.3f}"
