"""A value typed for a parameter of a method, read by the kind that the method's signature gives the parameter."""

import ast
import inspect
import math
from collections.abc import Callable
from typing import Any

from kvjax.artefacts.artefact import ArtefactLike
from kvjax.checks import brief

#: Tokens, heads or slots: more than any prompt has, and arrays of that size still fit a machine.
LARGEST = 2**20


def nameable(parameter: inspect.Parameter) -> bool:
    """Whether a value of it can be typed; a stage has no name on the command line."""
    return parameter.annotation in _KINDS or isinstance(parameter.default, str)


def value_of(parameter: inspect.Parameter, text: str) -> Any:
    """The value that `text` means for `parameter`.

    Raises:
        ValueError: it means none, or one out of range; with what is expected.
    """
    if not nameable(parameter):
        raise ValueError(f"{parameter.name} is a stage, which has no name on the command line: build the policy in Python")
    value = _literal(text.strip())
    if isinstance(parameter.default, str):  # a name, such as that of a built-in artefact
        return None if value is None else text.strip()
    expected, fits = _KINDS[parameter.annotation]
    if not fits(value):
        raise ValueError(f"{parameter.name}: expected {expected}, got {brief(text)}")
    return value


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, TypeError, SyntaxError, MemoryError, RecursionError):
        return text


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST


def _is_number(value: Any) -> bool:
    """Finite as a float32 is, and not negative."""
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and 0 <= value <= 3e38 and math.isfinite(value)


def _is_slots(value: Any) -> bool:
    return _is_whole(value) if isinstance(value, int) else isinstance(value, float) and 0 < value <= 1


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and all(map(_is_number, value)) and sum(value) > 0


_KINDS: dict[Any, tuple[str, Callable[[Any], bool]]] = {
    int: (f"a whole number from 0 to {LARGEST}", _is_whole),
    float: ("a number from 0 on", _is_number),
    bool: ("True or False", lambda value: isinstance(value, bool)),
    tuple: ("two numbers such as (3, 1)", _is_pair),
    int | float: (f"a whole number up to {LARGEST}, or a share in (0, 1]", _is_slots),
    ArtefactLike | None: ("the folder of an artefact", lambda value: isinstance(value, str)),
    float | None: ("a number from 0 on, or None", lambda value: value is None or _is_number(value)),
}
