"""What a leaderboard will measure and about what it will cost, in words."""

from collections.abc import Iterable, Iterator

from experiments.cost import Cost
from experiments.leaderboard.cells import Cells
from experiments.sweep import Plan


def lines(plan: Plan, cells: Cells, cost: Cost, together: Cost | None) -> Iterator[str]:
    """Tasks, methods at their budgets, those left out and why, rows, prompts, steps and minutes; `together`: were cells batched."""
    yield f"tasks: {plan.titles}; lengths: {_joined(plan.lengths)}; prompts: {plan.prompts}; seeds: {_joined(plan.seeds)}"
    budgets: dict[str, list] = {}
    for cell in plan.cells:
        budgets.setdefault(cell.name, []).append(cell.budget)
    yield f"{len(budgets)} methods in {len(plan.cells)} cells: " + "; ".join(_method(*found) for found in budgets.items())
    for name, why in cells.left_out.items():
        yield f"left out: {why if name in why else f'{name}: {why}'}"
    prompts = plan.prompts * len(plan.seeds) * len(plan.lengths) * len(plan.tasks)
    yield f"{len(plan.cells)} cells x {prompts} prompts: {cost.rows} rows to measure, {cost.found} found"
    yield f"{cost.prompts} prefills of {cost.prefill_tokens} tokens in all"
    yield f"{_time(cost)}, by this machine's speed of two products, without attention and compilation"
    if together is not None:
        yield f"with --batched, which measures no method's own time: {_time(together)}"


def _time(cost: Cost) -> str:
    return f"{cost.steps} decode steps, at least {cost.seconds / 60:.1f} min"


def _method(name: str, budgets: list) -> str:
    return name if budgets == [1.0] else f"{name} at {_joined(budgets)}"


def _joined(values: Iterable[object]) -> str:
    return ", ".join(map(str, values))
