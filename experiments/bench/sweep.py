"""A sweep against the loop it replaces: the same methods, budgets and prompts through kvpress, a prefill for every cell."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from experiments.bench import conditions
from experiments.bench.beside import cell, peers
from experiments.measure import measure
from experiments.policies import Named
from experiments.tasks import needle
from experiments.tasks.answering import Answering


def sweep(lm: Any, examples: Sequence[Any], cells: Sequence[Named], *, done: Callable = lambda count: None) -> dict[str, Any]:
    """Time the needle task of `examples` over `cells`, then the same grid through kvpress.

    The first prompt, which compiles, is timed apart: both the whole and the time of a further prompt are reported.

    Returns:
        conditions, seconds of each prompt (ours), seconds a prompt (peers), ratios (above 1: kvjax is faster).
    """
    dtype = str(lm.params["embed"]["weight"].dtype)
    seconds = [_ours(lm, example, cells, done) for example in examples]
    theirs = _theirs(lm, examples, cells, dtype)
    done(1)
    words = f"{len(cells)} cells x {len(examples)} prompts of {len(examples[0].compressed)} tokens"
    result = conditions("sweep", dtype, words) | {"kvjax_seconds_by_prompt": seconds}
    result["peers"] = theirs.get("versions") or theirs["missing"]
    if "cells" in theirs:
        spent = sum(_seconds(run) for runs in theirs["cells"].values() for run in runs)
        warm = spent / len(examples)
        result |= {"kvpress_seconds_by_prompt": warm, "ratios": _ratios(seconds, warm)}
    return result


def _ours(lm: Any, example: Any, cells: Sequence[Named], done: Callable) -> float:
    began = time.perf_counter()
    for _ in measure(lm, Answering(needle), example, cells, needs=[x.policy for x in cells]):
        done(1)
    return time.perf_counter() - began


def _theirs(lm: Any, examples: Sequence[Any], cells: Sequence[Named], dtype: str) -> dict[str, Any]:
    theirs = [cell(x.name.partition(":")[0], float(x.budget)) for x in cells]
    if None in theirs:
        return {"missing": "no peers measured: kvpress lacks a method of this grid"}
    prompts = [{"context": list(x.compressed), "fed": list(x.fed)} for x in examples]
    return peers(lm, theirs, prompts, dtype=dtype, rounds=0, new=examples[0].new_tokens)


def _seconds(run: dict[str, Any]) -> float:
    return run["prefill"] + run["fed"] + sum(run["steps"])


def _ratios(ours: list[float], theirs: float) -> dict[str, float]:
    whole = {f"kvpress / kvjax, {len(ours)} prompts with compilation": theirs * len(ours) / sum(ours)}
    warm = sorted(ours[1:])
    return whole | ({"kvpress / kvjax, a further prompt": theirs / warm[len(warm) // 2]} if warm else {})
