"""A sweep against the loop it replaces: the same methods, budgets and prompts through kvpress, a prefill for every cell."""

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import mean, median
from typing import Any

from experiments.bench import conditions
from experiments.bench.beside import cell, once, peers
from experiments.measure import measure
from experiments.policies import Named


def sweep(
    lm: Any, prompts: dict[str, Sequence[Any]], tasks: dict[str, Any], *,
    cells: Sequence[Named], beside: Sequence[Named], whole: int, done: Callable = lambda count: None,
) -> dict[str, Any]:  # fmt: skip
    """Time `cells` on each task's `prompts`, then `beside`, some of them, on the first prompts through kvpress.

    Every method cuts once, after the prompt, because kvpress's presses do, those too that go on evicting while decoding.
    The first prompt of a task, which compiles, is timed apart. The time of a grid of `whole` prompts a task is extrapolated from
    what was measured: ours as the first prompt and whole - 1 times the median of the others, kvpress's as the mean of its cells
    times all cells and prompts; it compiles nothing.

    Args:
        lm: the language model.   prompts: examples by task name.   tasks: what answers, by the same names.
        cells: of every prompt.   beside: those that the peers are timed on.   whole: prompts of the grid.
        done: told the number of cells measured.

    Returns:
        conditions, seconds of each prompt (ours), seconds a cell (peers), and ratios above 1 where kvjax is faster.
    """
    dtype = str(lm.params["embed"]["weight"].dtype)
    cells = [replace(x, policy=once(x.policy)) for x in cells]
    ours = {task: [_ours(lm, tasks[task], x, cells, done=done) for x in found] for task, found in prompts.items()}
    words = ", ".join(f"{len(found)} {task} prompts of {len(found[0].compressed)} tokens" for task, found in prompts.items())
    result = conditions("sweep", dtype, f"{len(cells)} cells; {words}") | {"kvjax_seconds_by_prompt": ours}
    theirs = {}
    for task, found in prompts.items():
        runs = _theirs(lm, found[0], beside, dtype)
        done(1)
        result["peers"] = runs.get("versions") or runs["missing"]
        if "cells" in runs:
            theirs[task] = [_seconds(run) for several in runs["cells"].values() for run in several]
    if len(theirs) == len(ours):
        hours, ratios = _compared(ours, theirs, len(cells), whole)
        result |= {"kvpress_seconds_by_cell": theirs, "hours_of_the_grid": hours, "ratios": ratios}
    return result


def _ours(lm: Any, task: Any, example: Any, cells: Sequence[Named], *, done: Callable) -> float:
    began = time.perf_counter()
    for _ in measure(lm, task, [example], cells, needs=[x.policy for x in cells]):
        done(1)
    return time.perf_counter() - began


def _theirs(lm: Any, example: Any, cells: Sequence[Named], dtype: str) -> dict[str, Any]:
    theirs = [cell(x.name.partition(":")[0], float(x.budget)) for x in cells]
    if None in theirs:
        return {"missing": "no peers measured: kvpress lacks a method of this grid"}
    prompt = {"context": list(example.compressed), "fed": list(example.fed)}
    return peers(lm, theirs, [prompt], dtype=dtype, rounds=0, new=example.new_tokens, stop=example.stop)


def _seconds(run: dict[str, Any]) -> float:
    return run["prefill"] + run["fed"] + sum(run["steps"])


def _compared(ours: dict[str, list], theirs: dict[str, list], cells: int, whole: int) -> tuple[dict, dict]:
    """Hours that `whole` prompts a task take either side, and the ratios."""
    further = {task: median(seconds[1:] or seconds) for task, seconds in ours.items()}
    loop = {task: cells * mean(seconds) for task, seconds in theirs.items()}
    grid = {
        "kvjax": sum(seconds[0] + (whole - 1) * further[task] for task, seconds in ours.items()) / 3600,
        "kvpress": whole * sum(loop.values()) / 3600,
    }
    each = {f"kvpress / kvjax, a further {task} prompt": loop[task] / further[task] for task in ours}
    return grid, each | {f"kvpress / kvjax, {whole} prompts a task with compilation": grid["kvpress"] / grid["kvjax"]}
