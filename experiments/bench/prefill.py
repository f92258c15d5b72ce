"""Prefill: seconds to read a prompt, with and without the evidence that policies ask for, beside peers and rivals."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import kvjax
from experiments.bench import conditions, interleaved, summary
from experiments.bench.beside import cell, peers, rivals, said


def prefill(
    lm: Any, ids: Sequence[int], *, rounds: int, gguf: Path | None = None, done: Callable = lambda count: None
) -> dict[str, Any]:
    """Time the prefill of `ids` alone and with all evidence, then transformers' and the rivals' in processes of their own.

    Our rounds run before and after theirs, so that a slow phase of the machine shows as a spread and not as a ratio.

    Args:
        lm: the language model. ids: the prompt. rounds: how often each reads it. gguf: the model for `beside.rivals`.

    Returns:
        conditions, seconds by cell, ratios (above 1: kvjax is faster).
    """
    dtype = str(lm.params["embed"]["weight"].dtype)
    work = {
        "kvjax": lambda: kvjax.prefill(lm, list(ids), needs=frozenset()),
        "kvjax, evidence for every method": lambda: kvjax.prefill(lm, list(ids)),
    }
    before = interleaved(work, rounds, done=done)
    theirs = peers(lm, [cell(None, 1.0)], [{"context": list(ids), "fed": []}], dtype=dtype, rounds=rounds, new=0)
    done(1)
    others = rivals(lm, ids, gguf, dtype=dtype, rounds=rounds, new=1)
    done(1)
    after = interleaved(work, rounds, done=done)
    seconds = {name: before[name] + after[name] for name in work}
    for name, runs in (theirs.get("cells", {}) | others.get("cells", {})).items():
        seconds[name] = [run["prefill"] for run in runs]
    times = {name: summary(values) for name, values in seconds.items()}
    middle = {name: value["median"] for name, value in times.items()}
    return conditions("prefill", dtype, f"{len(ids)} tokens, batch 1") | {
        "seconds": times,
        "peers": theirs.get("versions") or theirs["missing"],
        "rivals": said(others),
        "ratios": {f"{name} / kvjax": value / middle["kvjax"] for name, value in middle.items() if name != "kvjax"},
    }
