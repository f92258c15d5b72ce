"""Rows -> one table for each model and length: every policy and budget with its bytes, every task beside the other.

Retrieval and perplexity rank methods in opposite order, so a table shows both wherever both were measured.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from experiments.answer_cost import FIGURES
from experiments.full_cache import half_nbytes
from experiments.rows import Row, key
from experiments.stats import Estimate, average, share
from experiments.stretches import units


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
    """One policy at one budget: the share of slots kept; bytes on the device, in host memory, of the full cache (`full_cache`), of
    that in 16 bits, and of the policy's tables (None where its rows do not say).

    `costs`: by column, medians of the figures of `experiments.answer_cost` that its rows have.
    """

    policy: str
    budget: int | float
    share: float
    allocated: float
    host: float
    full: float
    half: float
    tables: float | None
    scores: dict[str, Score]
    costs: dict[str, dict[str, float]] = field(default_factory=dict)


@dataclass(frozen=True)
class Table:
    """All lines of one model and length; `columns` are task names with their question modes."""

    model: str
    dtype: str
    length: int
    columns: tuple[str, ...]
    lines: tuple[Line, ...]


def tables(rows: Sequence[Row]) -> list[Table]:
    """One table for each of `groups`.

    Raises:
        ValueError: no rows, or rows that do not compare (see `groups`).
    """
    if not rows:
        raise ValueError("no result rows: run `kvjax sweep` first")
    return [_table(*name, found) for name, found in groups(rows).items()]


def groups(rows: Sequence[Row]) -> dict[tuple[str, str, int], list[Row]]:
    """(model, dtype, length) -> rows; of a cell that appears twice (the same file given twice) one counts.

    Raises:
        ValueError: rows of different prompts for the same model and length, or one prompt measured under one name and budget
            with two settings, which would count it twice.
    """
    distinct = {(row["model"], row["dtype"], *key(row)): row for row in rows}
    found: dict[tuple, list[Row]] = {}
    for row in distinct.values():
        found.setdefault((row["model"], row["dtype"], row["length"]), []).append(row)
    for (model, _, length), of_length in found.items():
        _check(model, length, of_length)
    return dict(sorted(found.items()))


def prompt_of(row: Row) -> tuple:
    """What two cells must share to be compared prompt by prompt."""
    return (row["task"], row["mode"], row["seed"], row["prompt"])


def begin(row: Row) -> int | None:
    """Where its prompt begins in the text, in tokens; None where the row does not say."""
    return row.get("begin")


def _check(model: str, length: int, rows: list[Row]) -> None:
    where = f"{model} at length {length}"
    if len({row["prompts"] for row in rows}) > 1:
        raise ValueError(f"{where}: rows come from different prompts or texts; report them apart")
    _check_kinds(where, rows)
    seen: set[tuple] = set()
    for row in rows:
        cell = (row["policy"], row["budget"], *prompt_of(row))
        if cell in seen:
            raise ValueError(f"{where}: {row['policy']!r} at {row['budget']} has two settings in these files; report them apart")
        seen.add(cell)


def _check_kinds(where: str, rows: list[Row]) -> None:
    """A task is measured by scores or by nats, in all its rows."""
    kinds: dict[str, bool] = {}
    for row in rows:
        if kinds.setdefault(column(row), "score" in row) != ("score" in row):
            raise ValueError(f"{where}: {column(row)!r} has rows with a score and rows with nats; report them apart")


def order(policy: str, budget: int | float) -> tuple[Any, ...]:
    """Where a cell stands in every table and picture: the full cache first, policies by name, budgets from large to small."""
    return (policy != "full", policy, isinstance(budget, int), -budget)


def column(row: Row) -> str:
    """`needle unseen`, `needle seen`, `ppl`."""
    return row["task"] if row["mode"] == "-" else f"{row['task']} {row['mode']}"


def _table(model: str, dtype: str, length: int, rows: list[Row]) -> Table:
    def last(name: str) -> tuple:
        return (name.startswith("ppl"), not name.endswith("unseen"), name)

    columns = tuple(sorted({column(row) for row in rows}, key=last))
    cells: dict[tuple, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["policy"], row["budget"]), []).append(row)
    reference = {prompt_of(row): row for row in rows if row["policy"] == "full"}
    lines = [_line(*cell, found, reference) for cell, found in cells.items()]
    return Table(model, dtype, length, columns, tuple(sorted(lines, key=_order)))


def _line(policy: str, budget: int | float, rows: list[Row], reference: dict[tuple, Row]) -> Line:
    by_column: dict[str, list[Row]] = {}
    for row in rows:
        by_column.setdefault(column(row), []).append(row)

    def mean(field: str) -> float:
        return math.fsum(row[field] for row in rows) / len(rows)

    return Line(
        policy=policy,
        budget=budget,
        share=mean("kept_share"),
        allocated=mean("allocated_bytes"),
        host=mean("host_bytes"),
        full=mean("full_bytes"),
        half=math.fsum(map(half_nbytes, rows)) / len(rows),
        tables=table_nbytes(rows),
        scores={name: _score(found, reference) for name, found in by_column.items()},
        costs={name: costs for name, found in by_column.items() if (costs := medians(found))},
    )


def table_nbytes(rows: Sequence[Row]) -> float | None:
    """Bytes of the arrays that a policy brings along once for all prompts, a mean over the rows that say; None where none does."""
    known = [row["table_bytes"] for row in rows if "table_bytes" in row]
    return statistics.fmean(known) if known else None


def medians(rows: Sequence[Row]) -> dict[str, float]:
    """The figures of `experiments.answer_cost` that all rows have."""
    return {name: statistics.median(row[name] for row in rows) for name in FIGURES if all(name in row for row in rows)}


def _score(rows: list[Row], reference: dict[tuple, Row]) -> Score:
    if "score" in rows[0]:
        return Score("share", share([row["score"] for row in rows]))
    paired = [row for row in rows if prompt_of(row) in reference]
    more = [row["nll"] - reference[prompt_of(row)]["nll"] for row in paired]
    excess = average(more, units(list(map(begin, paired)))) if more and rows[0]["policy"] != "full" else None
    return Score("nats", average([row["nll"] for row in rows], units(list(map(begin, rows)))), excess)


def _order(line: Line) -> tuple[Any, ...]:
    return order(line.policy, line.budget)
