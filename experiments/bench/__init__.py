"""Benchmarks: every figure the project prints about speed comes from a file here, with machine, dtype, shapes and commit."""

import fcntl
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


def interleaved(work: Mapping[str, Callable[[], Any]], rounds: int, *, done=lambda count: None) -> dict[str, list[float]]:
    """Seconds of each piece of work, round after round, so that slow phases of a shared machine hit all alike.

    A first round that compiles is run and not counted.
    """
    seconds: dict[str, list[float]] = {name: [] for name in work}
    for count in range(rounds + 1):
        for name, run in work.items():
            began = time.perf_counter()
            jax.block_until_ready(run())
            if count:
                seconds[name].append(time.perf_counter() - began)
            done(1)
    return seconds


def summary(values: list[float]) -> dict[str, float | int]:
    """Median, least and number of the values."""
    return {"median": statistics.median(values), "min": min(values), "count": len(values)}
