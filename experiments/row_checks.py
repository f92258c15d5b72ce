"""What makes a line of a file a result row, a trace or a comparison with the peers: every field that a reader relies on.

Each check raises ValueError with the field, what was expected and what came.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from experiments.full_cache import SIZES
from kvjax.checks import brief

#: A row as it was read, not yet trusted.
Check = Callable[[Mapping[str, Any]], None]

_TEXTS = ("task", "mode", "policy_repr")
_SHARED = ("model", "dtype", "prompts", "policy")
_BYTES = ("allocated_bytes", "host_bytes", "full_bytes")
#: What a benchmark's contestants are measured in.
_FIGURES = ("ms_per_token", "seconds", "memory", "allocated_bytes")
#: Fields that need not be there, and are numbers where they are.
_TIMES = (
    "seconds_prefill", "seconds_compress", "seconds_per_token", "depth", "kv_footprint", "kv_peak", "pte", "pte_stored",
    "answer_tokens", "seconds_to_first_token", "table_bytes", "held_slots", "stored_bits",
)  # fmt: skip


def cell(row: Mapping[str, Any]) -> None:
    """The fields of `rows.KEY`: they name a cell of a prompt."""
    if not isinstance(row, dict):
        raise ValueError(f"expected an object, got {brief(row)}")
    _each(row, _TEXTS, text)
    _each(row, ("length", "prompt", "seed"), whole)
    _each(row, ("budget",), number)


def result(row: Mapping[str, Any]) -> None:
    """A row of `kvjax sweep`: a cell, what it occupies, and its score or its nats per token."""
    cell(row)
    _each(row, _SHARED, text)
    if ":" not in row["prompts"]:
        raise ValueError(f"prompts: expected VERSION:DIGEST, got {brief(row['prompts'])}")
    if row["dtype"] not in SIZES:
        raise ValueError(f"dtype: expected {' or '.join(SIZES)}, got {brief(row['dtype'])}")
    _each(row, ("budget", "full_bytes"), positive)
    _each(row, ("kept_share", *_BYTES), number)
    _each(row, [name for name in _TIMES if name in row], number)
    measured = [name for name in ("score", "nll") if name in row]
    if len(measured) != 1:
        raise ValueError(f"expected a score or nll (one of them), got {' and '.join(measured) or 'neither'}")
    _each(row, measured, number)
    _each(row, [name for name in ("text", "split", "commit", "machine", "data") if row.get(name) is not None], text)
    _each(row, [name for name in ("versions", "artefacts") if name in row], words)


def trace(row: Mapping[str, Any]) -> None:
    """A trace of `experiments.traces`: a cell, and the slots of its heads and stretches."""
    cell(row)
    _each(row, _SHARED, text)
    _each(row, ("tokens",), whole)
    _each(row, ("tokens", "budget"), positive)
    _each(row, [name for name in ("depth",) if name in row], number)
    _each(row, ("lengths", "retention"), table)
    if "drift" in row:
        _drift(row["drift"])


def bench(found: Mapping[str, Any]) -> None:
    """What `kvjax bench --json` writes, as far as the report reads it."""
    _each(found, ("bench", "dtype", "shape", "machine"), text)
    _each(found, ("versions", *(["peers"] if "peers" in found else [])), words)
    for name in ("ratios", "cells", *_FIGURES):
        _object(found, name)
    for name in _FIGURES:
        _figures(found.get(name, {}))
    for label, cell in found.get("cells", {}).items():
        _object(found["cells"], label)
        _each(cell, [part for part in ("device_bytes", "host_bytes") if part in cell], number)


def _figures(found: Mapping[str, Any]) -> None:
    """Numbers, or summaries with a median."""
    for label, figure in found.items():
        if isinstance(figure, dict):
            number(figure, "median")
        else:
            number(found, label)


def _object(row: Mapping[str, Any], name: str) -> None:
    if not isinstance(row.get(name, {}), dict):
        raise ValueError(f"{name}: expected an object, got {_came(row, name)}")


def text(row: Mapping[str, Any], name: str) -> None:
    """A string that can be written as UTF-8."""
    value = row.get(name)
    if not isinstance(value, str) or not value or any("\ud800" <= x <= "\udfff" for x in value):
        raise ValueError(f"{name}: expected text, got {_came(row, name)}")


def whole(row: Mapping[str, Any], name: str) -> None:
    """An integer from 0 on, in 64 bits."""
    value = row.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**63:
        raise ValueError(f"{name}: expected a whole number, got {_came(row, name)}")


def number(row: Mapping[str, Any], name: str) -> None:
    """A number that is finite."""
    if not _is_number(row.get(name)):
        raise ValueError(f"{name}: expected a finite number, got {_came(row, name)}")


def positive(row: Mapping[str, Any], name: str) -> None:
    """A number above 0."""
    number(row, name)
    if row[name] <= 0:
        raise ValueError(f"{name}: expected a number above 0, got {_came(row, name)}")


def words(row: Mapping[str, Any], name: str) -> None:
    """An object of texts."""
    value = row.get(name)
    if not isinstance(value, dict):
        raise ValueError(f"{name}: expected an object of texts, got {_came(row, name)}")
    _each(value, list(value), text)


def table(row: Mapping[str, Any], name: str) -> None:
    """Lines of numbers, all of one length, and one number at least."""
    lines = _lines(row, name)
    if not lines or not lines[0] or not all(_is_number(x) for line in lines for x in line):
        raise ValueError(f"{name}: expected lines of numbers, got {_came(row, name)}")


def _drift(found: Any) -> None:
    if not isinstance(found, dict):
        raise ValueError(f"drift: expected an object, got {brief(found)}")
    _each(found, ("w", "first"), whole)
    _each(found, ("theta",), number)
    pivots, medians = _lines(found, "pivots"), _lines(found, "medians")
    if not all(x is None or _is_number(x) for line in medians for x in line):
        raise ValueError(f"medians: expected lines of numbers or null, got {_came(found, 'medians')}")
    if len(pivots) != len(medians) or any(len(line) != 2 for line in pivots):
        raise ValueError(f"pivots: expected a layer and a head for each line of medians, got {_came(found, 'pivots')}")
    refreshes = found.get("refreshes")
    if not isinstance(refreshes, list) or not all(map(_is_number, refreshes)):
        raise ValueError(f"refreshes: expected a list of numbers, got {_came(found, 'refreshes')}")


def _lines(row: Mapping[str, Any], name: str) -> list[list[Any]]:
    """Lists of one length in a list."""
    value = row.get(name)
    if isinstance(value, list) and all(isinstance(line, list) and len(line) == len(value[0]) for line in value):
        return value
    raise ValueError(f"{name}: expected lines of one length, got {_came(row, name)}")


def _is_number(value: Any) -> bool:
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and abs(value) < 2**63 and math.isfinite(value)


def _each(row: Mapping[str, Any], names: Sequence[str], check: Callable[[Mapping[str, Any], str], None]) -> None:
    for name in names:
        check(row, name)


def _came(row: Mapping[str, Any], name: str) -> str:
    return brief(row[name]) if name in row else "nothing"
