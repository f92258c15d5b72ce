"""The one place where a name becomes a policy: `NAME[:key=value,...]` and a budget string.

    snapkv:window=32   with budget   256   ->  kvjax.methods.snapkv(window=32, budget=256)

A budget is a whole number of slots per KV head (`256`) or, with a decimal point, the share of the prompt kept (`0.5`).
"""

import ast
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import kvjax

Budget = int | float


@dataclass(frozen=True)
class Named:
    """A policy with the words the user gave for it: `name` (method and its arguments) and `budget`."""

    name: str
    budget: Budget
    policy: Any


def parse_budget(text: str) -> Budget:
    """`"256"` -> 256 slots per KV head; `"0.5"` -> that share of the prompt kept.

    Raises:
        ValueError: not a number, not positive, or a share above 1.
    """
    try:
        value = int(text)
    except ValueError:
        value = _share(text)
    if value <= 0:
        raise ValueError(f"budget {text!r} must be positive: slots per KV head (256) or the share kept (0.5)")
    return value


def parse_policy(spec: str, budget: Budget) -> Named:
    """`NAME[:key=value,...]` and a budget -> the policy `kvjax.methods.NAME(budget=budget, key=value, ...)`.

    A method without a budget (`full`) is built without one and reported as keeping everything.

    Raises:
        ValueError: unknown name, unknown or malformed parameter, or a value the method refuses.
    """
    name, _, rest = spec.strip().partition(":")
    method = _method(name)
    known = inspect.signature(method).parameters
    given = _arguments(name, rest, [key for key in known if key != "budget"])
    if "budget" in known:
        given["budget"] = budget
    try:
        policy = method(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy {spec!r}: {error}") from error
    return Named(spec.strip(), given.get("budget", 1.0), policy)


def split_specs(text: str) -> list[str]:
    """Split `a,b:x=1,y=2,c` into policies: a part with `=` but no `:` belongs to the policy before it."""
    specs: list[str] = []
    for part in filter(None, (part.strip() for part in text.split(","))):
        if "=" in part and ":" not in part and specs:
            specs[-1] += "," + part
        else:
            specs.append(part)
    return specs


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or value > 1:
        raise ValueError(f"budget {text!r} is neither a whole number of slots (256) nor a share kept in (0, 1] (0.5)")
    return value


def _method(name: str) -> Callable[..., Any]:
    names = kvjax.methods.names()
    if name not in names:
        raise ValueError(f"unknown policy {name!r}; known: {', '.join(names)}")
    return getattr(kvjax.methods, name)


def _arguments(name: str, text: str, known: list[str]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for part in filter(None, (part.strip() for part in text.split(","))):
        key, equals, value = part.partition("=")
        if not equals or key not in known or key in given:
            takes = ", ".join(known) or "no parameters"
            raise ValueError(f"policy {name!r}: {part!r} is not one key=value of its parameters; it takes: {takes}")
        given[key] = _literal(value)
    return given


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text
