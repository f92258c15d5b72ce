"""One table a task: every cell's mean over prompts, and its difference to a baseline, paired; intervals as in table.md."""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from experiments.full_cache import half_nbytes
from experiments.report.tables import begin, column, groups, medians, order, prompt_of, table_nbytes
from experiments.rows import Row
from experiments.stats import Estimate, average, share, share_difference
from experiments.stretches import units

Cell = tuple[str, int | float]


@dataclass(frozen=True)
class Entry:
    """One policy at one budget on one task.

    Attributes:
        prompt: its tokens, or its length where rows do not say.   share: of the slots kept.
        allocated, host, full: bytes, means over prompts.   half: of the full cache in 16 bits.
        tables: bytes that the policy brings along once for all prompts; None where its rows do not say.
        score: mean over prompts, scores from 0 to 1 or nats per token.
        difference: mean over the prompts that both measured of (this cell - baseline); None where there is none.
        compress, token: seconds, medians over prompts; of a token in a batch of several cells, that cell's part.
        costs: medians over prompts of the figures of `experiments.answer_cost` that the rows have.
        batch: cells that were decoded together, a median over prompts.
    """

    policy: str
    budget: int | float
    prompt: float
    share: float
    allocated: float
    host: float
    full: float
    half: float
    tables: float | None
    score: Estimate
    difference: Estimate | None
    compress: float | None
    token: float | None
    batch: float
    costs: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Comparison:
    """One task of one model and length; `kind` is "share" or "nats", `baseline` a policy's name."""

    model: str
    dtype: str
    length: int
    task: str
    kind: str
    baseline: str
    entries: tuple[Entry, ...]


def compare(rows: Sequence[Row], baseline: str) -> list[Comparison]:
    """One comparison for each task of each model and length.

    A cell is compared with the baseline's of the same budget, else with the baseline's only one.

    Raises:
        ValueError: rows that do not compare (see `groups`).
    """
    found = []
    for (model, dtype, length), of_length in groups(rows).items():
        for task in sorted({column(row) for row in of_length}, key=lambda name: (name.startswith("ppl"), name)):
            of_task = [row for row in of_length if column(row) == task]
            kind = "share" if "score" in of_task[0] else "nats"
            found.append(Comparison(model, dtype, length, task, kind, baseline, _entries(of_task, baseline)))
    return found


class Measured(Protocol):
    """What was measured with a model's prompts of one length."""

    model: str
    dtype: str
    length: int


def setting(found: Measured) -> tuple[str, str, int]:
    """What must be the same for two numbers to stand beside each other: model, dtype and length."""
    return found.model, found.dtype, found.length


def check_baseline(rows: Sequence[Row], name: str) -> None:
    """Raise ValueError if no row is the baseline's."""
    known = sorted({row["policy"] for row in rows})
    if name not in known:
        raise ValueError(f"--baseline {name!r} is none of the policies measured: {', '.join(known)}")


def worth(row: Row) -> float:
    """A row's score, or its nats per token."""
    return row["score"] if "score" in row else row["nll"]


def _entries(rows: Sequence[Row], baseline: str) -> tuple[Entry, ...]:
    cells: dict[Cell, list[Row]] = {}
    for row in rows:
        cells.setdefault((row["policy"], row["budget"]), []).append(row)
    references = {budget: _by_prompt(found) for (policy, budget), found in cells.items() if policy == baseline}
    entries = [_entry(cell, found, baseline, references) for cell, found in cells.items()]
    return tuple(sorted(entries, key=lambda e: order(e.policy, e.budget)))


def _entry(cell: Cell, rows: list[Row], baseline: str, references: Mapping) -> Entry:
    policy, budget = cell
    only = next(iter(references.values())) if len(references) == 1 else {}
    reference = {} if policy == baseline else references.get(budget, only)

    def mean(name: str) -> float:
        return statistics.fmean(row[name] for row in rows)

    return Entry(
        policy=policy,
        budget=budget,
        prompt=statistics.fmean(row.get("prompt_tokens", row["length"]) for row in rows),
        share=mean("kept_share"),
        allocated=mean("allocated_bytes"),
        host=mean("host_bytes"),
        full=mean("full_bytes"),
        half=statistics.fmean(map(half_nbytes, rows)),
        tables=table_nbytes(rows),
        score=mean_score(rows),
        difference=_difference(rows, reference),
        compress=_median(rows, "seconds_compress"),
        token=_median(rows, "seconds_per_token"),
        batch=_median(rows, "rows") or 1,
        costs=medians(rows),
    )


def mean_score(rows: Sequence[Row]) -> Estimate:
    """Of scores from 0 to 1 with Wilson's interval, of nats with Student's."""
    return share([row["score"] for row in rows]) if "score" in rows[0] else _nats(rows, [row["nll"] for row in rows])


def _difference(rows: Sequence[Row], reference: Mapping[tuple, float]) -> Estimate | None:
    """Mean of (rows - reference) over the prompts of both; None where there is none."""
    common = sorted((row for row in rows if prompt_of(row) in reference), key=prompt_of)
    if not common:
        return None
    mine, other = [worth(row) for row in common], [reference[prompt_of(row)] for row in common]
    if "score" in rows[0]:
        return share_difference(mine, other)
    return _nats(common, [x - y for x, y in zip(mine, other, strict=True)])


def _nats(rows: Sequence[Row], values: Sequence[float]) -> Estimate:
    return average(values, units(list(map(begin, rows))))


def _by_prompt(rows: Sequence[Row]) -> dict[tuple, float]:
    return {prompt_of(row): worth(row) for row in rows}


def _median(rows: Sequence[Row], name: str) -> float | None:
    values = [row[name] for row in rows if name in row]
    return statistics.median(values) if values else None
