"""`--dry-run`: what a command would measure and about how long it would take; nothing is written."""

from pathlib import Path
from typing import Any

from experiments import sweep
from experiments.console import out
from experiments.cost import Cost, estimate
from experiments.full_cache import MB
from experiments.rows import Found
from experiments.tasks.chat import encode_plain
from experiments.tasks.text import Haystack


def checked_cost(lm: Any, plan: sweep.Plan, source: Haystack, rows: Path) -> Cost:
    """What is to be measured, once it is seen that all of it can be; arguments and errors as `print_cost`."""
    ids, found = encode_plain(lm, source.text), Found(rows, sweep.identity(lm, source))
    sweep.check(lm, plan, ids, found)
    return estimate(lm, plan, ids, found)


def print_cost(lm: Any, plan: sweep.Plan, source: Haystack, rows: Path) -> Cost:
    """Print the plan and its cost, once it is seen that all of it can be measured.

    Args:
        rows: the result file that the command would go on with, or begin.

    Raises:
        ValueError: as `experiments.sweep.check`.
    """
    cost = checked_cost(lm, plan, source, rows)
    seeds, lengths = (", ".join(map(str, x)) for x in (plan.seeds, plan.lengths))
    out.print(f"tasks: {plan.titles}", markup=False)
    out.print(f"lengths: {lengths}; seeds: {seeds}; prompts: {plan.prompts}")
    for cell in plan.cells:
        out.print(f"  {cell.name} at {cell.budget}{'' if cell.takes_budget else ', for it takes no budget'}", markup=False)
    out.print(f"{cost.rows} rows to measure, {cost.found} found in {rows}", markup=False)
    out.print(f"{cost.prompts} prefills of {cost.prefill_tokens} tokens in all")
    out.print(f"{cost.steps} decode steps in batches, {cost.row_steps} were it row by row")
    out.print(f"at most {cost.largest_bytes / MB:.0f} MB of full caches at once")
    out.print(f"at least {cost.seconds / 60:.1f} min by this machine's speed of two products, without attention and compilation")
    return cost
