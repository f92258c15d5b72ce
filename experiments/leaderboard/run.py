"""Measuring a leaderboard: the sweep's own run, prompt by prompt, with the page written again now and then."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from experiments import sweep
from experiments.leaderboard.write import ROWS
from experiments.prefills import Afresh
from experiments.rows import Row, RowFile, key, read
from experiments.tasks.text import Haystack

#: Seconds between two writings of the page.
PAUSE = 120.0


def run(
    lm: Any, plan: sweep.Plan, text: Haystack, folder: Path, *,
    prefills: Any = Afresh(), publish: Callable[[list], object], done: Callable[[int], None] = lambda count: None,
) -> int:  # fmt: skip
    """Measure what `folder`'s rows lack of `plan`; returns the number of rows measured.

    Args:
        lm, plan, text, prefills: as `experiments.sweep.run`.
        folder: where rows.jsonl is, or will be.
        publish: told the plan's rows when a prompt of every task is measured and two minutes have passed, and at the end.
        done: told the number of rows measured.

    Raises:
        ValueError, OSError: as `experiments.sweep.run` and `publish`.
    """
    file, measured, last = folder / ROWS, 0, time.monotonic()
    with RowFile(file, sweep.identity(lm, text)) as rows:
        for first in range(0, plan.prompts, plan.together):
            part = replace(plan, prompts=min(first + plan.together, plan.prompts))
            if not any(part.missing(rows, prompt) for prompt in part.prompt_keys()):
                continue
            measured += sweep.run(lm, part, text, rows, prefills=prefills, done=done)
            if part.prompts < plan.prompts and time.monotonic() - last > PAUSE:
                publish(of_plan(plan, read(file)))
                last = time.monotonic()
    publish(of_plan(plan, read(file)))
    return measured


def of_plan(plan: sweep.Plan, rows: Sequence[Row]) -> list[Row]:
    """The rows that `plan` asks for; a file may hold others, of another task or method, which the page is not about."""
    asked = {(task.NAME, mode, length, index, seed) for index, seed, length, task, mode in plan.prompt_keys()}
    cells = {(cell.policy.in_full(), cell.budget) for cell in plan.cells}
    found = []
    for row in rows:
        task, mode, length, index, policy, budget, seed = key(row)
        if (task, mode, length, index, seed) in asked and (policy, budget) in cells:
            found.append(row)
    return found
