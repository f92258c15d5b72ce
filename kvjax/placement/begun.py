"""Rows that a thread of the host reads while the device works: begun at one place of a program, taken at a later one."""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cache
from threading import Lock
from typing import NamedTuple

import numpy as np

#: Threads that read.
_THREADS = 2
#: Bytes of a store's readings that are under way, or read and not taken; what was begun first is forgotten beyond it.
_MOST = 1 << 28


@cache
def _threads() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_THREADS, thread_name_prefix="kvjax-host-rows")


class _Begun(NamedTuple):
    rows: "Future[np.ndarray]"
    nbytes: int


class BegunReads:
    """What was begun of one store, by what was asked for. A reading is taken once; what nobody began is read when it is taken.

    That something was begun changes when rows are read, never which: a program that was begun elsewhere, a cache from a file and a
    cache that is decoded twice read the same rows, later. Programs of several threads may begin and take at once.
    """

    def __init__(self):
        self._reads: OrderedDict[Hashable, _Begun] = OrderedDict()
        self._held = 0
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._reads)

    def __contains__(self, asked: Hashable) -> bool:
        return asked in self._reads

    def begin(self, asked: Hashable, read: Callable[[], np.ndarray], nbytes: int) -> None:
        """Have a thread call `read`, which gives so many bytes, unless the same was begun and not taken."""
        with self._lock:
            if asked not in self._reads:
                self._reads[asked] = _Begun(_threads().submit(read), nbytes)
                self._held += nbytes
            while self._held > _MOST and len(self._reads) > 1:
                oldest = self._reads.popitem(last=False)[1]
                oldest.rows.cancel()
                self._held -= oldest.nbytes

    def take(self, asked: Hashable, read: Callable[[], np.ndarray]) -> np.ndarray:
        """What a thread read, waited for; what `read` gives where nothing was begun."""
        with self._lock:
            found = self._reads.pop(asked, None)
            self._held -= 0 if found is None else found.nbytes
        return read() if found is None else found.rows.result()
