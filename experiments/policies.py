"""The one place where a name becomes a policy: `NAME[:key=value,...]` and a budget string.

    snapkv:window=32   with budget   256   ->  kvjax.methods.snapkv(window=32, budget=256)

A budget is a whole number of slots per KV head (`256`) or, with a decimal point, the share of the prompt kept (`0.5`).
"""

import inspect
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax

import kvjax
from experiments.policy_values import nameable, value_of
from kvjax.checks import brief
from models.numbers import MOST

Budget = int | float


@dataclass(frozen=True)
class Named:
    """A policy with the words the user gave for it: `name` (method and its arguments) and `budget`; `takes_budget`: its method."""

    name: str
    budget: Budget
    policy: Any
    takes_budget: bool = True

    @property
    def table_bytes(self) -> int:
        """Bytes of the arrays that the policy brings along, once for all prompts: codebooks, gates, roles of heads."""
        return sum(x.nbytes for x in jax.tree.leaves(self.policy) if getattr(x, "ndim", 0))


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
        raise ValueError(f"budget {brief(text)} must be positive: slots per KV head (256) or the share kept (0.5)")
    if value > MOST:
        raise ValueError(f"budget {brief(text)} is more slots per KV head than any cache has: at most {MOST}")
    return value


def policy_of(spec: str, budget: str | None, usual: Budget | None = None) -> Named:
    """The policy of a command that takes one: `--policy` and `--budget` as they were typed, None where it was not given.

    Args:
        usual: the budget of a method that takes one, where none was given; None: it must be.

    Raises:
        ValueError: as `parse_budget` and `parse_policy`, or a budget below everything for a method that takes none.
    """
    given = None if budget is None else parse_budget(budget)
    named = parse_policy(spec, usual if given is None else given)
    if given not in (None, 1.0) and not named.takes_budget:
        raise ValueError(f"policy {brief(spec)} takes no budget, got --budget {brief(budget)}: leave it out")
    return named


def parse_policy(spec: str, budget: Budget | None) -> Named:
    """`NAME[:key=value,...]` and a budget -> the policy `kvjax.methods.NAME(budget=budget, key=value, ...)`.

    A method without a budget (`full`) is built without one and reported as keeping everything.

    Raises:
        ValueError: unknown name, unknown or malformed parameter, a value the method refuses, or no budget where it takes one.
    """
    name, _, rest = spec.strip().partition(":")
    known = inspect.signature(_method(name)).parameters
    given = _arguments(name, rest, {key: known[key] for key in known if key != "budget"})
    if "budget" in known:
        given["budget"] = _asked(name, budget)
    try:
        policy = _method(name)(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"policy {brief(spec)}: {error}") from error
    return Named(spec.strip(), given.get("budget", 1.0), policy, "budget" in known)


def split_specs(text: str) -> list[str]:
    """Split `a,b:x=1,y=2,c` into policies: a part with `=` but no `:` belongs to the policy before it."""
    specs: list[str] = []
    for part in _parts(text):
        if "=" in part and ":" not in part and specs:
            specs[-1] += "," + part
        else:
            specs.append(part)
    return specs


def _parts(text: str) -> list[str]:
    """What commas part, but for those inside parentheses."""
    return [part.strip() for part in re.split(r",(?![^(]*\))", text) if part.strip()]


def _share(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if math.isnan(value) or value > 1:
        raise ValueError(f"budget {brief(text)} is neither a whole number of slots (256) nor a share kept in (0, 1] (0.5)")
    return value


def _asked(name: str, budget: Budget | None) -> Budget:
    if budget is None:
        raise ValueError(
            f"policy {name!r} needs a --budget: slots per KV head (256) or the share of the prompt kept (0.5), for example "
            f"--policy {name} --budget 0.25"
        )
    return budget


def _method(name: str) -> Callable[..., Any]:
    names = kvjax.methods.names()
    if name not in names:
        raise ValueError(f"unknown policy {brief(name)}; known: {', '.join(names)}")
    return getattr(kvjax.methods, name)


def _arguments(name: str, text: str, known: dict[str, inspect.Parameter]) -> dict[str, Any]:
    given: dict[str, Any] = {}
    for part in _parts(text):
        key, equals, value = part.partition("=")
        if key in given:
            raise ValueError(f"policy {name!r}: {key} is given twice")
        if not equals or key not in known:
            takes = ", ".join(filter(lambda key: nameable(known[key]), known)) or "no parameters"
            raise ValueError(f"policy {name!r}: {brief(part)} is not one key=value of its parameters; it takes: {takes}")
        try:
            given[key] = value_of(known[key], value)
        except ValueError as error:
            raise ValueError(f"policy {name!r}: {error}") from error
    return given
