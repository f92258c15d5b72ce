"""What the fields of stages hold, against how they are declared: a type, and a range where `kvjax.ranges` gives one.

Only what a script could pass is refused: traced numbers, shapes in place of arrays, and the placeholders that pytree
transformations put where leaves were, pass.
"""

import types
from abc import ABCMeta
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import numpy as np
from flax import linen as nn
from jaxtyping import PyTree

from kvjax.budget import number_of
from kvjax.ranges import Range
from kvjax.stage import Stage

#: What no pytree transformation puts in the place of a field, but a script may by mistake.
_MISTAKES = (bool, int, float, complex, str, bytes, list, tuple, dict, set, type, np.ndarray, Stage)
#: How types of fields are called in a sentence.
_WORDS = {int: "a whole number", float: "a number", bool: "True or False", str: "a text", tuple: "a tuple"}


@dataclass(frozen=True)
class _Field:
    """A field: the types it may hold, whether functions are among them, its range, and its default as an example."""

    name: str
    kinds: tuple[type, ...]
    function: bool
    range: Range | None
    default: object

    def takes(self, x: object) -> bool:
        """Whether x is of its types; an int is a float, a bool is neither."""
        if isinstance(x, bool):
            return bool in self.kinds
        wider = (*self.kinds, int) if float in self.kinds else self.kinds
        return isinstance(x, wider) or (self.function and callable(x) and not isinstance(x, type))

    def __str__(self) -> str:
        if self.range is not None:
            return str(self.range)
        names = " or ".join(_WORDS.get(kind, f"of kind {kind.__name__}") for kind in self.kinds)
        example = f", such as {self.default!r}" if is_dataclass(self.default) else ""
        return f"{names or 'callable'}{example}"


def check_fields(stage: object) -> None:
    """Raise TypeError or ValueError for a field, of a stage or of what it is made of, that holds what it cannot.

    Raises:
        TypeError: another type than it is declared with.   ValueError: a number out of its range.
    """
    for field in _fields(type(stage)):
        value = getattr(stage, field.name)
        _check(f"{type(stage).__name__}.{field.name}", field, value)
        for part in value if isinstance(value, tuple) else (value,):
            if is_dataclass(part) and not isinstance(part, type | nn.Module):
                check_fields(part)


def _check(where: str, field: _Field, value: PyTree) -> None:
    x = number_of(value)
    if (field.kinds or field.function) and not field.takes(x) and isinstance(x, _MISTAKES):
        wrong = ValueError if field.range is not None and isinstance(x, float) else TypeError
        raise wrong(f"{where} must be {field}; got {value!r}")
    if field.range is not None and isinstance(x, int | float) and not field.range.holds(x):
        raise ValueError(f"{where} must be {field.range}; got {value!r}")


@cache
def _fields(kind: type) -> tuple[_Field, ...]:
    """The fields of a class; none of one whose annotations name what is not there."""
    try:
        hints = get_type_hints(kind, include_extras=True)
    except (NameError, TypeError):
        return ()
    return tuple(_field(field.name, hints.get(field.name, Any), field.default) for field in fields(kind))


def _field(name: str, hint: object, default: object) -> _Field:
    """A field by its annotation; no types where some of them cannot be told by looking at a value."""
    found, limits = [], None
    for one in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if get_origin(one) is Annotated:
            one, limits = get_args(one)  # noqa: PLW2901
            one = int | float if one is Any else one  # noqa: PLW2901
        found += get_args(one) if isinstance(one, types.UnionType) else [get_origin(one) or one]
    function = Callable in found
    kinds = tuple(one for one in found if one not in (Callable, type(None)))
    told = all(type(one) in (type, ABCMeta) for one in kinds)
    return _Field(name, kinds if told else (), function and told, limits, default)
