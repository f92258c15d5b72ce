"""What else the machine did while something was timed: cores that other processes kept busy, as the system counts them.

    others = (busy seconds of all processors - processor seconds of this process) / seconds gone by
"""

import os
import time
from pathlib import Path

_STAT = Path("/proc/stat")
#: Columns of the first line of /proc/stat: user, nice, system, idle, iowait, irq, softirq, steal.
_IDLE = (3, 4)


class OtherWork:
    """Begins to count when it is made.

    Example:
        watch = OtherWork()
        ...
        watch.cores()  # 0.97: as if one other process had computed all the time
    """

    def __init__(self) -> None:
        self._began, self._own, self._busy = time.perf_counter(), _own_seconds(), busy_seconds()

    def cores(self) -> float | None:
        """Mean since it began; None where the system does not tell."""
        busy = busy_seconds()
        if busy is None or self._busy is None:
            return None
        return other_cores(busy - self._busy, _own_seconds() - self._own, time.perf_counter() - self._began)


def other_cores(busy: float, own: float, seconds: float) -> float:
    """(busy - own) / seconds, never below 0: the system counts in hundredths of a second."""
    return max(0.0, (busy - own) / seconds)


def busy_seconds(stat: Path = _STAT) -> float | None:
    """Seconds that all processors were busy since the machine began; None where there is no such file."""
    try:
        first = stat.read_text().splitlines()[0].split()[1:9]
    except OSError:
        return None
    return sum(int(x) for i, x in enumerate(first) if i not in _IDLE) / os.sysconf("SC_CLK_TCK")


def _own_seconds() -> float:
    """Processor seconds of all threads of this process."""
    return time.process_time()
