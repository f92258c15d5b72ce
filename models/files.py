"""Files of a model folder: regular ones only, and JSON objects read with every damage told by name."""

import json
from pathlib import Path
from typing import Any


def regular(path: Path) -> Path:
    """Return `path`, a regular file or nothing at all: opening a pipe would wait for a writer for ever.

    Raises:
        OSError: something is there that is no regular file.
    """
    if path.exists() and not path.is_file():
        raise OSError(f"{path} is no regular file (a pipe, a device or a folder): put a regular file there, or remove it")
    return path


def read_json(path: Path) -> dict[str, Any]:
    """Return the object in a JSON file.

    Raises:
        FileNotFoundError: it is not there.
        OSError: it is no regular file, or cannot be read.
        ValueError: it holds no JSON, or something other than an object.
    """
    if not regular(path).is_file():
        raise FileNotFoundError(f"{path} does not exist; a model folder holds config.json and *.safetensors")
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not valid JSON ({error}); download it again") from error
    except RecursionError as error:
        raise ValueError(f"{path} is not valid JSON (nested too deep); download it again") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} must hold a JSON object, got {type(found).__name__}; download it again")
    return found
