"""From a prefill to the first token where nothing is compiled any more: what a policy costs a user who waits."""

import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

import kvjax
from experiments.bench import conditions, summary
from experiments.policies import Named

#: Tokens of the longer decode, from which a token's own time is told.
MANY = 33


def first_token(
    lm: Any, ids: Sequence[int], cells: Sequence[Named], *, rounds: int, done: Callable[[int], None] = lambda count: None
) -> dict[str, Any]:
    """Time `compress` and the first token of each policy over one prefill.

    Every policy is compressed and decoded once before, so that nothing compiles while it is timed.

    Args:
        lm: the language model.   ids: the prompt.   cells: policies with their budgets.
        rounds: counted runs; medians are reported.

    Returns:
        conditions, and of each cell in milliseconds: compress, the first token, a later token, and what the former two take beyond
        a later one.
    """
    pre = kvjax.prefill(lm, list(ids), needs=[cell.policy for cell in cells])
    for cell in cells:
        for new in (1, MANY):
            _timed(lm, pre, cell.policy, new)
    runs: dict[str, list[tuple[float, ...]]] = {f"{cell.name} {cell.budget:g}": [] for cell in cells}
    for _ in range(rounds):
        for cell in cells:
            compressed, first = _timed(lm, pre, cell.policy, 1)
            _, many = _timed(lm, pre, cell.policy, MANY)
            runs[f"{cell.name} {cell.budget:g}"].append((compressed, first, (many - first) / (MANY - 1)))
            done(1)
    dtype = str(lm.params["embed"]["weight"].dtype)
    return conditions("first-token", dtype, f"{len(ids)} tokens, batch 1") | {"cells": {name: _told(x) for name, x in runs.items()}}


def _timed(lm: Any, pre: Any, policy: kvjax.Policy, new: int) -> tuple[float, float]:
    """Milliseconds of compress, with the second reading of a policy that wants one, and of `new` tokens."""
    marks = [time.perf_counter()]
    cache = jax.block_until_ready(kvjax.compress(kvjax.second_pass(lm, pre, policy), policy))
    marks.append(time.perf_counter())
    kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=())
    marks.append(time.perf_counter())
    return 1e3 * (marks[1] - marks[0]), 1e3 * (marks[2] - marks[1])


def _told(runs: list[tuple[float, ...]]) -> dict[str, float]:
    """Medians, and what the first token takes beyond a later one."""
    compressed, first, later = (round(summary(list(values))["median"], 2) for values in zip(*runs, strict=True))
    return {"compress": compressed, "first token": first, "later token": later, "beyond": round(compressed + first - later, 2)}
