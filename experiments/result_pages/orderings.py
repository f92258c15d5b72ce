"""Published orderings beside what was measured: which budgets of two methods compare, and how it came out."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from experiments.ablations.compare import Prompt, compared, kind, prompt_of, worth
from experiments.full_cache import half_nbytes
from experiments.report import column
from experiments.report.words import difference
from experiments.rows import Row
from experiments.verdicts import Verdict

#: What a method has that keeps every token: its size is its own.
WHOLE = 1.0
Budget = int | float


@dataclass(frozen=True)
class Ordering:
    """Two methods on one task.

    Attributes:
        better, worse: as published.   budgets: of the one and of the other.
        verdict: on the prompts that both have, more is better.
    """

    better: str
    worse: str
    task: str
    budgets: tuple[Budget, Budget]
    verdict: Verdict

    @property
    def budget(self) -> str:
        """The budget of both; the one and the other where they differ."""
        return ", ".join(map(str, dict.fromkeys(self.budgets)))

    @property
    def difference(self) -> str:
        """What the better one is ahead, with its interval."""
        return difference(self.verdict.difference, kind(self.task))

    @property
    def count(self) -> int:
        """Prompts that both have."""
        return self.verdict.difference.count


def orderings(rows: Sequence[Row], pairs: Iterable[tuple[str, str]]) -> list[Ordering]:
    """Every pair on every task that both have, at every budget where the two compare; pair by pair, nats last."""
    cells: dict[str, dict[tuple[str, int], list[Row]]] = {}
    for row in rows:
        cells.setdefault(row["policy"], {}).setdefault((column(row), row["length"]), []).append(row)
    return [
        found
        for better, worse in pairs
        for task in sorted(cells.get(better, {}).keys() & cells.get(worse, {}).keys(), key=_nats_last)
        for found in _on_task(cells[better][task], cells[worse][task])
    ]


def _nats_last(task: tuple[str, int]) -> tuple[bool, str, int]:
    return kind(task[0]) == "nats", *task


def _on_task(mine: Sequence[Row], others: Sequence[Row]) -> Iterator[Ordering]:
    better, worse = mine[0]["policy"], others[0]["policy"]
    for budgets in _side_by_side(mine, others):
        values = [_by_prompt(rows, budget) for rows, budget in zip((mine, others), budgets, strict=True)]
        if values[0].keys() & values[1].keys():
            task = column(mine[0])
            yield Ordering(better, worse, task, budgets, compared(*values, kind(task)))


def _by_prompt(rows: Sequence[Row], budget: Budget) -> dict[Prompt, float]:
    return {prompt_of(row): worth(row) for row in rows if row["budget"] == budget}


def _side_by_side(mine: Sequence[Row], others: Sequence[Row]) -> list[tuple[Budget, Budget]]:
    """Budgets of two methods that compare, largest first: equal ones.

    One that keeps every token has a size of its own. As the better one it stands beside the smallest share of the other's slots
    that, were they kept in 16 bits, would hold as many bytes as it has on the device; as the worse one beside every budget of the
    better.
    """
    first, second = ({row["budget"] for row in rows} for rows in (mine, others))
    if second == {WHOLE}:
        return [(budget, WHOLE) for budget in sorted(first, reverse=True)]
    if first != {WHOLE}:
        return [(budget, budget) for budget in sorted(first & second, reverse=True)]
    share = math.fsum(row["allocated_bytes"] / half_nbytes(row) for row in mine) / len(mine)
    enough = [budget for budget in second if budget >= round(share, 2)]
    return [(WHOLE, min(enough))] if enough else []
