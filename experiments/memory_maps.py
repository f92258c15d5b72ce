"""A guard for long runs: every compiled program holds memory maps of the process, of which Linux grants 65,530."""

import gc
from pathlib import Path

import jax

#: Maps after which programs are forgotten, before a cell: one of thirty layers adds up to three thousand.
MOST = 56_000


def held() -> int:
    """Memory maps of this process; 0 where the system does not say."""
    try:
        return Path("/proc/self/maps").read_bytes().count(b"\n")
    except OSError:
        return 0


def forget_programs(most: int | None = None) -> None:
    """Drop compiled programs where their maps near the system's limit: they compile again, where the run would have aborted.

    Args:
        most: maps that may be held before what comes next; MOST by default.
    """
    if held() > (MOST if most is None else most):
        jax.clear_caches()
        gc.collect()
