"""Folders put in place whole: a process that is killed leaves the former one or the new one."""

import ctypes
import os
import sys
from pathlib import Path

#: Of renameat2 (Linux) and renamex_np (macOS): exchange the two names, in one step.
_EXCHANGE = 2
_HERE = -100


def put(draft: Path, folder: Path) -> None:
    """Give `draft` the name of `folder`; what had that name has the draft's afterwards, where something had.

    In one step where the system exchanges names (Linux, macOS). Elsewhere a process that is killed in between leaves the former
    folder under the name of the draft's alone, with `.old` behind it.

    Raises:
        OSError: one of the names cannot be given.
    """
    if not folder.exists():
        draft.rename(folder)
    elif not _exchanged(draft, folder):
        aside = draft.with_name(f"{draft.name}.old")
        folder.rename(aside)
        draft.rename(folder)
        aside.rename(draft)


def _exchanged(one: Path, other: Path) -> bool:
    """Whether the system could exchange two names, and has."""
    names, system = (os.fsencode(one), os.fsencode(other)), ctypes.CDLL(None)
    try:
        if sys.platform == "linux":
            return system.renameat2(_HERE, names[0], _HERE, names[1], _EXCHANGE) == 0
        return sys.platform == "darwin" and system.renamex_np(*names, _EXCHANGE) == 0
    except AttributeError:  # a system older than the call
        return False
