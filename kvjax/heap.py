"""Freed caches go back to the operating system."""

import ctypes
import os
import sys

#: mallopt's parameter M_MMAP_THRESHOLD, and the size from which a block is mapped on its own.
_PARAMETER, _BYTES = -3, 4 << 20


def return_freed_memory() -> None:
    """Have glibc map every block of 4 MiB or more on its own, so that freeing it returns it.

    By default glibc raises that size after the first large block is freed and then keeps what follows: a released prefill would
    stay with the process (380 MB at 8k tokens of SmolLM2) and compiling the decode program would come on top of it. A user's own
    MALLOC_MMAP_THRESHOLD_ is left alone; other C libraries have no such setting.
    """
    if sys.platform != "linux" or "MALLOC_MMAP_THRESHOLD_" in os.environ:
        return
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(_PARAMETER, _BYTES)
