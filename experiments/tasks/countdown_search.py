"""Countdown's search: numbers combined two at a time until one is left, which is to be the target; every try is a line.

    state [x_1 .. x_k]:  for i < j, larger operand first, + - * / : the result goes to the front of what is left, depth first

A result that is no integer or is 2000 or more ends its branch. Source: Ye et al., 2025, "LongProc", section 3 and
longproc/countdown_evaluator.py of princeton-pli/LongProc, whose wording is kept; after Gandhi et al., 2024, "Stream of Search".
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations

#: Results from here on are dropped.
LIMIT = 2000
TRACED = """
Now we have found the target, let's trace back the solution:
Final step: {0[2]}
The step before: {0[1]}
The first step: {0[0]}

Output the solution in the required format:
<Solution>
{0[0]}
{0[1]}
{0[2]}
</Solution>
"""


@dataclass(frozen=True)
class Search:
    """The equations that reach the target, `40 + 19 = 59` and so on, and the lines of the search up to there."""

    equations: tuple[str, ...]
    log: str

    @property
    def tries(self) -> int:
        """Operations tried."""
        return self.log.count("|- Try ")

    @property
    def demonstration(self) -> str:
        """The search and its solution, as a prompt shows them and an answer repeats them (of four numbers)."""
        return f"# Search Procedure\n{self.log}\n{TRACED.format(self.equations)}"


def search(numbers: Sequence[int], target: int) -> Search | None:
    """The first solution in the order of the search; None where there is none.

    Raises:
        ValueError: fewer than three numbers.

    Example:
        search([40, 19, 23, 7], 29).equations == ("40 + 19 = 59", "59 - 23 = 36", "36 - 7 = 29")
    """
    if len(numbers) < 3:
        raise ValueError(f"a countdown search starts from three numbers at least; got {list(numbers)}")
    log = [f"Initial number set: {list(numbers)}, target: {target}. {_options(numbers)}"]
    found = _expand(list(numbers), target, 1, log)
    return None if found is None else Search(tuple(found), "".join(log))


def _expand(numbers: list[int], target: int, depth: int, log: list[str]) -> list[str] | None:
    """Try every pair of `numbers`; the equations from here to the target, or None."""
    for i, j in combinations(range(len(numbers)), 2):
        a, b = numbers[i], numbers[j]
        left = [number for k, number in enumerate(numbers) if k not in (i, j)]
        if left:
            log.append(f"\n{_indent(depth)}Pick two numbers ({a}, {b}) (numbers left: {left}). Try possible operations.")
        for equation, value in _results(max(a, b), min(a, b)):
            found = _try(equation, value, left, target, depth + 1, log)
            if found is not None:
                return [equation, *found]
    return None


def _try(equation: str, value: float | None, left: list[int], target: int, depth: int, log: list[str]) -> list[str] | None:
    log.append(f"\n{_indent(depth)}Try {equation}. ")
    if value is None or not float(value).is_integer() or value >= LIMIT:
        log.append(_dropped(value))
        return None
    numbers = [int(value), *left]
    if not left:
        right = value == target
        log.append(f"Evaluate {numbers[0]} == {target}, target found!" if right else f"Evaluate {numbers[0]} != {target}, {DROP}")
        return [] if right else None
    more = f". {_options(numbers)}" if len(numbers) > 2 else ", just two numbers left."
    log.append(f"Add {numbers[0]} to the number set. Current number set: {numbers}, target: {target}{more}")
    return _expand(numbers, target, depth + (len(numbers) > 2), log)


DROP = "drop this branch."


def _dropped(value: float | None) -> str:
    if value is None:
        return DROP
    if not float(value).is_integer():
        return f"{value:.1f} is a decimal, {DROP}"
    return f"{value} exceeds the maximum intermediate result, {DROP}"


def _results(a: int, b: int) -> Iterator[tuple[str, float | None]]:
    """Equations and values of the four operations, a >= b; a division by 0 has no value."""
    yield f"{a} + {b} = {a + b}", a + b
    yield f"{a} - {b} = {a - b}", a - b
    yield f"{a} * {b} = {a * b}", a * b
    if not b:
        yield f"{a} / {b} (invalid operation)", None
    elif a % b:
        yield f"{a} / {b} = {a / b:.1f}", a / b
    else:
        yield f"{a} / {b} = {a // b}", a // b


def _options(numbers: Sequence[int]) -> str:
    return f"Options for choosing two numbers: {list(combinations(numbers, 2))}."


def _indent(level: int) -> str:
    return f"{' ' * level}|- "
