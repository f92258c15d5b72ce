"""Freed caches go back to the operating system."""

import ctypes
import sys
from functools import cache


@cache
def _malloc_trim():
    """glibc's malloc_trim, or None with another C library."""
    return getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None


def trim() -> None:
    """Return what was freed to the system before more is asked for.

    glibc keeps freed blocks of up to 32 MiB: a released prefill would stay with the process (380 MB at 8k tokens of SmolLM2),
    and the next pool and the compilation of its program would come on top of it. Called where pools are made, never in a step.
    """
    malloc_trim = _malloc_trim()
    if malloc_trim is not None:
        malloc_trim(0)
