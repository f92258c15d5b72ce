"""What objects of the library say of themselves in one line, also where their arrays are traced, abstract or given away."""

from collections.abc import Callable, Iterable
from dataclasses import MISSING, Field, fields, is_dataclass

import jax
import numpy as np
from jaxtyping import PyTree

#: Values that may be compared with a default: anything else may be traced, or hold what is.
_PLAIN = (bool, int, float, str, type(None))


def one_line(name: str, *parts: str | None) -> str:
    """`name(part, part)` without the parts that are not known."""
    return f"{name}({', '.join(part for part in parts if part)})"


def attempt(say: Callable[[], str]) -> str | None:
    """What `say` says; None where arrays have no values to say it of: what an error message shows must not raise another."""
    try:
        return say()
    except Exception:
        return None


def counted(n: int, one: str) -> str:
    """`1 row`, `11,520 slots`."""
    return f"{n:,} {one}{'s' * (n != 1)}"


def megabytes(nbytes: int) -> str:
    """Bytes in units of 10^6, as everywhere in the library; in units of 10^3 where they are few."""
    return f"{nbytes / 1e6:.1f} MB" if nbytes >= 1e5 else f"{nbytes / 1e3:.1f} kB"


def span(numbers: Iterable[int]) -> str:
    """`997`, or `20 to 997`."""
    found = sorted(numbers)
    return f"{found[0]:,}" if found[0] == found[-1] else f"{found[0]:,} to {found[-1]:,}"


def nbytes_of(tree: PyTree) -> int:
    """Bytes of all arrays, of traced ones what they will have."""
    return sum(x.size * x.dtype.itemsize for x in jax.tree.leaves(tree))


def short(x: object) -> str:
    """A stage, or a value of one, in one line: a dataclass by what differs from its defaults, an array by its dtype and shape."""
    if is_dataclass(x) and not isinstance(x, type):
        return one_line(type(x).__name__, *changed(x))
    if isinstance(x, tuple | list):
        return f"({', '.join(map(short, x))}{',' * (len(x) == 1)})"
    if isinstance(x, dict):
        return "{" + ", ".join(f"{key!r}: {short(value)}" for key, value in x.items()) + "}"
    if isinstance(x, np.generic | np.ndarray | jax.Array):
        return (_number(x) if np.ndim(x) == 0 else None) or f"{x.dtype}{list(x.shape)}"
    return " ".join(repr(x).split())


def changed(x: object) -> list[str]:
    """`name=value` of the fields of a dataclass that differ from their defaults."""
    return [f"{f.name}={short(getattr(x, f.name))}" for f in fields(x) if _is_said(x, f)]


def _is_said(x: object, field: Field) -> bool:
    return field.repr and (field.default is MISSING or not _same(getattr(x, field.name), field.default))


def _same(one: object, two: object) -> bool:
    """Whether two values are alike all through; False where telling would read an array."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, _PLAIN):
        return one == two
    if isinstance(one, tuple):
        return len(one) == len(two) and all(map(_same, one, two))
    return is_dataclass(one) and all(_same(getattr(one, f.name), getattr(two, f.name)) for f in fields(one))


def _number(x: np.generic | np.ndarray | jax.Array) -> str | None:
    """The value of a scalar; None where it is traced."""
    return attempt(lambda: f"{np.asarray(x).item():.6g}")
