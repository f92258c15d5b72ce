"""The table of `kvjax bench peer-scores`: a cell's score beside kvpress's 95% interval, and the full cache beside transformers."""

from collections.abc import Sequence
from typing import Any

from experiments.bench import conditions
from experiments.bench.parity import divergence
from experiments.bench.scores import row_key
from experiments.rows import Row, key
from experiments.stats import proportion


def table(sets: Sequence[dict], rows: Sequence[Row]) -> dict[str, Any]:
    """Scores of the prompts that `rows` and the record share.

    Returns:
        conditions, cells {"task length mode METHOD/RATIO": {kvjax, kvpress, low, high (Wilson, 95%), n, inside, same: equal
        verdicts}}, full {set: mean scores of both, answers
        compared token by token, equal ones}, divergences (near-ties marked), ratios.
    """
    answered = {key(row): row for row in rows}
    found, full, parted = {}, {}, []
    for one in sets:
        ours = _rows(one, answered)
        name = f"{one['task']} {one['length']} {one['mode']}"
        found |= {f"{name} {cell}": _cell(cell, said, ours) for cell, said in one["verdicts"].items() if ours}
        compared = {index: _parted(row, one["prompts"][index]["tokens"]) for index, row in ours.items()}
        full |= {name: _full(one, ours, compared)} if ours else {}
        parted += [{"set": name, "prompt": index} | where for index, where in compared.items() if where]
    words = f"{len(found)} cells, {sum(one['compared'] for one in full.values())} answers of the full cache"
    ratios = {
        "cells inside kvpress's 95% interval": _share(found, "inside", None),
        "verdicts equal to kvpress's": _share(found, "same", "n"),
        "full-cache answers equal to transformers'": _share(full, "equal", "compared"),
    }
    return conditions("scores", "float32", words) | {"cells": found, "full": full, "divergences": parted, "ratios": ratios}


def _share(found: dict[str, dict], hits: str, of: str | None) -> float:
    return sum(one[hits] for one in found.values()) / max(1, sum(one[of] if of else 1 for one in found.values()))


def _rows(one: dict, answered: dict[tuple, Row]) -> dict[int, Row]:
    keys = {index: key(row_key(one, index)) for index in range(len(one["prompts"]))}
    return {index: answered[wanted] for index, wanted in keys.items() if wanted in answered}


def _cell(cell: str, said: str, ours: dict[int, Row]) -> dict[str, Any]:
    mine = [bool(row["scores"][cell]) for row in ours.values()]
    theirs = [said[index] == "1" for index in ours]
    score, estimate = sum(mine) / len(mine), proportion(theirs)
    interval = {"low": round(estimate.low, 4), "high": round(estimate.high, 4), "n": estimate.count}
    inside = estimate.low <= score <= estimate.high
    same = sum(a == b for a, b in zip(mine, theirs, strict=True))
    return {"kvjax": score, "kvpress": estimate.mean} | interval | {"inside": inside, "same": same}


def _full(one: dict, ours: dict[int, Row], compared: dict[int, Any]) -> dict[str, Any]:
    scored = [i for i in ours if one["prompts"][i]["score"] is not None]
    asked = [i for i in ours if one["prompts"][i]["tokens"]]
    mine, theirs = ([source[i][field] for i in scored] for source, field in ((ours, "full_score"), (one["prompts"], "score")))

    def mean(values: Sequence[float]) -> float:
        return sum(values) / max(1, len(values))

    equal = sum(compared[i] is None for i in asked)
    return {"prompts": len(scored), "kvjax": mean(mine), "transformers": mean(theirs), "compared": len(asked), "equal": equal}


def _parted(row: Row, theirs: list[int] | None) -> dict[str, Any] | None:
    return divergence(row["tokens"][: len(theirs)], theirs, row["gaps"]) if theirs else None
