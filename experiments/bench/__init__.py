"""Benchmarks: every figure the project prints about speed comes from a file here, with machine, dtype, shapes and commit."""

import fcntl
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import jax

from experiments.provenance import commit, machine, versions


def conditions(bench: str, dtype: str, shape: str) -> dict[str, Any]:
    """What a figure is worth nothing without."""
    threads = {"machine": machine(), "commit": commit(), "versions": versions()}
    return {"bench": bench, "dtype": dtype, "shape": shape, **threads}


@contextmanager
def alone() -> Iterator[None]:
    """Hold the machine's one benchmark lock; two timings at once slow each other several-fold.

    Raises:
        OSError: another benchmark is running.
    """
    path = Path(tempfile.gettempdir()) / "kvjax-bench.lock"
    with open(path, "w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise OSError(f"another benchmark is running on this machine (it holds {path}): wait for it") from error
        yield


#: Runs of one piece of work in a row that are counted, where a run takes milliseconds.
STREAK = 5


def interleaved(
    work: Mapping[str, Callable[[], Any]], rounds: int, *, streak: int = 1, done: Callable = lambda count: None
) -> dict[str, list[float]]:
    """Seconds of `rounds` runs of each piece of work, in turns, so that slow phases of a shared machine hit all alike.

    A turn is `streak` runs and, where those are several, one before them that is not counted: it finds other work's caches and
    threads that sleep. A first round that compiles is not counted either.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for turn in range(turns(rounds, streak)):
        for name, run in work.items():
            for count in range(streak + (streak > 1)):
                began = time.perf_counter()
                jax.block_until_ready(run())
                if count if streak > 1 else turn:
                    seconds[name].append(time.perf_counter() - began)
                done(1)
    return {name: values[:rounds] for name, values in seconds.items()}


def turns(rounds: int, streak: int = 1) -> int:
    """Turns of `interleaved` until `rounds` runs are counted."""
    return math.ceil(rounds / streak) if streak > 1 else rounds + 1


def runs(rounds: int, streak: int = 1) -> int:
    """How often `interleaved` runs each piece of work."""
    return turns(rounds, streak) * (streak + (streak > 1))


def summary(values: list[float]) -> dict[str, float | int]:
    """Median, least and number of the values."""
    return {"median": statistics.median(values), "min": min(values), "count": len(values)}
