"""Whether methods keep their order on other prompts: two disjoint halves of the prompts, each ranked by itself."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import spearmanr

from experiments.report.comparison import worth
from experiments.report.tables import column
from experiments.rows import Row

#: Methods and prompts below which a cell says nothing.
FEWEST_METHODS, FEWEST_PROMPTS = 5, 8
#: Values by prompt.
Values = Mapping[int, float]


@dataclass(frozen=True)
class Halves:
    """The order of the methods of one cell on either half of its prompts.

    Attributes:
        task: with its question mode.
        budget: a share of the prompt's slots; 1.0 of methods with a size of their own; None of the means over all smaller shares.
        methods: that were measured on all of the prompts.   prompts: of both halves.
        rho: Spearman's rank correlation, equal scores at their mean rank; None where a half has one score for all.
    """

    model: str
    dtype: str
    length: int
    task: str
    budget: float | None
    methods: int
    prompts: int
    rho: float | None


def halves(rows: Sequence[Row]) -> list[Halves]:
    """The prompts of even and of odd number of every task, ranked apart: by the mean over the budgets, and at each of them.

    Example:
        >>> cell = dict(model="m", dtype="float32", length=64, task="needle", mode="unseen", budget=0.5)
        >>> rows = [{**cell, "policy": f"p{m}", "prompt": i, "score": m / 9} for m in range(6) for i in range(8)]
        >>> halves(rows)[0].rho
        1.0
    """
    found = []
    for setting, by_budget in sorted(_by_task(rows).items()):
        cells = {budget: _measured(of_policy) for budget, of_policy in sorted(by_budget.items(), reverse=True)}
        together = _mean({budget: cell for budget, cell in cells.items() if budget < 1})
        found += [_ranked(setting, budget, cell) for budget, cell in [(None, together), *cells.items()]]
    return [one for one in found if one is not None]


def _by_task(rows: Sequence[Row]) -> dict[tuple[str, str, int, str], dict[float, dict[str, dict[int, float]]]]:
    found: dict[tuple, dict[float, dict[str, dict[int, float]]]] = {}
    for row in rows:
        if isinstance(row["budget"], float):
            setting = row["model"], row["dtype"], row["length"], column(row)
            of_policy = found.setdefault(setting, {}).setdefault(row["budget"], {})
            of_policy.setdefault(row["policy"], {})[row["prompt"]] = worth(row)
    return found


def _measured(of_policy: Mapping[str, Values]) -> dict[str, Values]:
    """The methods that were measured on the prompts that most were measured on, and those prompts of each."""
    prompts, _ = Counter(tuple(sorted(values)) for values in of_policy.values()).most_common(1)[0]
    return {name: {i: own[i] for i in prompts} for name, own in of_policy.items() if own.keys() >= set(prompts)}


def _mean(cells: Mapping[float, Mapping[str, Values]]) -> dict[str, Values]:
    """Means over the budgets with most prompts, of the methods that have all of these; nothing where there is one such budget."""
    sizes = {budget: len(next(iter(cell.values()))) for budget, cell in cells.items()}
    several = [cell for budget, cell in cells.items() if sizes[budget] == max(sizes.values())]
    if len(several) < 2:
        return {}
    names = set.intersection(*(set(cell) for cell in several))
    return {name: {i: float(np.mean([cell[name][i] for cell in several])) for i in several[0][name]} for name in sorted(names)}


def _ranked(setting: tuple[str, str, int, str], budget: float | None, cell: Mapping[str, Values]) -> Halves | None:
    values = np.array([[own[i] for i in sorted(own)] for own in cell.values()])
    if len(values) < FEWEST_METHODS or values.shape[1] < FEWEST_PROMPTS:
        return None
    even, odd = values[:, ::2].mean(1), values[:, 1::2].mean(1)
    varied = np.ptp(even) > 0 and np.ptp(odd) > 0
    rho = float(spearmanr(even, odd).statistic) if varied else None
    return Halves(*setting, budget=budget, methods=len(values), prompts=values.shape[1], rho=rho)
