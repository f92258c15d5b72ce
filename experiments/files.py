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
    handle, draft = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(draft, 0o644)
        os.replace(draft, path)
    except OSError as error:
        raise OSError(f"cannot write {path}: {error.strerror}") from error
    finally:
        Path(draft).unlink(missing_ok=True)
    return path
