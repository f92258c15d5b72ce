"""Writing a file so that a reader, a crash or a full disk never sees half of it."""

import os
import tempfile
from pathlib import Path


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
