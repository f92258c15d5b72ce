"""What a warm process is told, and what it answers."""

import os
from typing import TypedDict


class Attempt(TypedDict):
    """What to run, and when to kill it: after so many seconds, as soon as the folder holds more than so many bytes, before the
    change of that number; None for never."""

    command: str
    argv: list[str]
    folder: str
    seconds: float | None
    size: int | None
    changes: int | None


def size_of(folder: str) -> int:
    """Bytes of all files in a folder, some of which may vanish meanwhile."""
    found = 0
    for where, _, names in os.walk(folder):
        for name in names:
            try:
                found += os.stat(os.path.join(where, name)).st_size
            except FileNotFoundError:
                continue
    return found


class Ended(TypedDict):
    """The exit code, negative for a signal, the seconds it had, and the changes it made where it ended by itself."""

    code: int
    seconds: float
    changes: int
