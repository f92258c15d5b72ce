"""What glibc's heap gives back to the operating system, and when."""

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache

#: mallopt's names for the two, and what glibc itself comes to when blocks of 32 MiB have been freed.
_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3
_LARGEST = 32 << 20


@cache
def _of_libc(name: str):
    """A function of glibc, or None with another C library."""
    return getattr(ctypes.CDLL(None), name, None) if sys.platform == "linux" else None


def trim() -> None:
    """Return what was freed to the system before more is asked for.

    glibc keeps freed blocks of up to 32 MiB: a released prefill would stay with the process (380 MB at 8k tokens of SmolLM2),
    and the next pool and the compilation of its program would come on top of it. Called where pools are made, never in a step.
    """
    malloc_trim = _of_libc("malloc_trim")
    if malloc_trim is not None:
        malloc_trim(0)


@contextmanager
def reused() -> Iterator[None]:
    """Within, blocks of any size that are freed are kept for the next of their size; then they go back.

    Each layer's program asks for room (40 MB at 2k tokens of SmolLM2). Larger blocks than 32 MiB would be mapped and cleared a page
    at a time for every layer: a tenth of a prompt's time. Thresholds that the environment sets are left alone.
    """
    mallopt = _of_libc("mallopt")
    if mallopt is None or _set_outside():
        yield
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, 1 << 30)
    try:
        yield
    finally:
        mallopt(_MMAP_THRESHOLD, _LARGEST)
        mallopt(_TRIM_THRESHOLD, 2 * _LARGEST)
        trim()


@cache
def _set_outside() -> bool:
    """Whether whoever started this process chose thresholds."""
    chosen = {"MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"} & set(os.environ)
    return bool(chosen) or "threshold" in os.environ.get("GLIBC_TUNABLES", "")
