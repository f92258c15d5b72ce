"""Reading with an end, and writing so that a reader, a crash or a full disk never sees half of a file."""

import os
import tempfile
from pathlib import Path

#: Bytes taken from a pipe or a device, which may never end.
MOST_STREAMED = 2**26


def read(path: str | Path) -> bytes:
    """All bytes of a file; of a pipe or a device as many as any text has.

    Raises:
        OSError: it cannot be read, or a pipe or a device gives more than 64 MiB.
    """
    path = Path(path)
    if path.is_file():
        return path.read_bytes()
    with open(path, "rb") as stream:
        data = stream.read(MOST_STREAMED + 1)
    if len(data) > MOST_STREAMED:
        raise OSError(f"{path} is no regular file and gives more than {MOST_STREAMED} bytes: give a regular file")
    return data


def refuse_unwritable(path: str | Path) -> None:
    """Raise OSError where `write_atomically` would, as far as can be told without writing."""
    path = Path(path)
    if path.is_dir():
        raise OSError(f"cannot write {path}: it is a folder")
    if not path.parent.is_dir():
        raise OSError(f"cannot write {path}: there is no folder {path.parent}")
    if not os.access(path if path.exists() and not path.is_file() else path.parent, os.W_OK):
        raise OSError(f"cannot write {path}: permission denied")


def write_atomically(path: str | Path, data: bytes) -> Path:
    """Write `data` beside `path`, flush it to disk, then rename it over `path`; devices and pipes are written straight.

    Raises:
        OSError: the folder is not there or not writable, or the disk is full; the former file is untouched.
    """
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_bytes(data)
        return path
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete_on_close=False) as draft:
            draft.write(data)
            draft.flush()
            os.fsync(draft.fileno())
            os.chmod(draft.name, 0o644)
            os.replace(draft.name, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from error
    return path
