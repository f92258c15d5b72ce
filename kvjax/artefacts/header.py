"""What an artefact's header has to be, seen before anything of its tables is read."""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import numpy as np

#: Raised whenever a header's or a table's meaning changes.
SCHEMA = 1
_SUM = "checksum"
_TYPES = dict(method=str, model=dict, data=dict, settings=dict, tables=dict, digest=str, passages=str)
_DTYPES = (
    "bool", "int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64", "float16", "float32", "float64", "bfloat16",
)  # fmt: skip


def write(path: Path, header: Mapping[str, object], files: Mapping[str, str]) -> None:
    """Write a header with the checksums of the tables' files, and its own."""
    told = {**header, "files": files}
    path.write_text(json.dumps({**told, _SUM: _checksum(told)}, indent=1) + "\n")


def read(path: Path) -> dict[str, object]:
    """The header of an artefact.

    Raises:
        ValueError: no JSON object, another schema, a field that is missing or of another type, or another checksum than its own;
            one without a checksum is taken as it is.
    """
    try:
        found = json.loads(path.read_text())
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no JSON ({str(error)[:80]}): calibrate or train again") from error
    schema = found.get("schema") if isinstance(found, dict) else found
    if schema != SCHEMA or isinstance(schema, bool):
        raise ValueError(f"{path.parent} has schema {schema!r:.40}, this version reads {SCHEMA}: calibrate or train again")
    told = found.pop(_SUM, None)
    if told is not None and told != _checksum(found):
        raise ValueError(f"{path} is damaged or was edited: its checksum is another; calibrate or train again")
    found.setdefault("passages", "")
    kinds = _TYPES | ({"files": dict} if "files" in found else {})
    if wrong := [name for name, kind in kinds.items() if not isinstance(found.get(name), kind)]:
        raise ValueError(f"{path} lacks {', '.join(wrong)}, or has something else there: calibrate or train again")
    if not isinstance(found["model"].get("name", ""), str):
        raise ValueError(f"{path} has a model whose name is no text: calibrate or train again")
    return found


def shapes(header: Mapping[str, object], path: Path) -> dict[str, tuple[str, tuple[int, ...]]]:
    """(dtype, shape) of every table.

    Raises:
        ValueError: something else stands there.
    """
    found = {}
    for name, told in header["tables"].items():
        whole = isinstance(told, list) and len(told) == 2 and told[0] in _DTYPES and isinstance(told[1], list)
        if not whole or not all(type(n) is int and 0 <= n < 2**63 for n in told[1]):
            raise ValueError(f"{path}: {name[:80]!a} is no dtype and shape of a table: calibrate or train again")
        found[name] = (told[0], tuple(told[1]))
    return found


def _checksum(header: Mapping[str, object]) -> str:
    return hashlib.sha256(json.dumps(header, sort_keys=True).encode()).hexdigest()[:16]


def empty(dtype: str, shape: tuple[int, ...]) -> np.ndarray:
    """A table of such a shape that takes no memory, whatever a header claims."""
    return np.broadcast_to(np.zeros((), dtype), shape)
