"""Whether equations solve a countdown, and how far a search repeats the right one.

Source: princeton-pli/LongProc, longproc/countdown_evaluator.py and eval_countdown. We differ: an equation is read as two
integers and an operation, where that code runs it (`eval`); a division by 0 is wrong there too, but ends in an error.
"""

import operator
from collections.abc import Sequence

OPERATIONS = {"+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv}


def solves(numbers: Sequence[int], target: int, solution: str) -> bool:
    """Whether three lines `a op b = c` take a and b from the numbers, put c back and leave the target."""
    pool, lines = list(numbers), solution.split("\n")
    if len(lines) != 3:
        return False
    for line in lines:
        try:
            a, b, c = _equation(line)
            pool.remove(a)
            pool.remove(b)
        except (ValueError, ZeroDivisionError):
            return False
        pool.append(c)
    return pool[0] == target


def _equation(line: str) -> tuple[int, int, int]:
    """The three integers of a right equation. Raises ValueError or ZeroDivisionError for anything else."""
    left, right = line.strip().split("=")
    sign = next((sign for sign in OPERATIONS if sign in left), None)
    if sign is None:
        raise ValueError(f"no operation in {line!r}")
    a, b, c = (int(part) for part in (*left.split(sign), right))
    if OPERATIONS[sign](a, b) != c:
        raise ValueError(f"{line!r} is wrong")
    return a, b, c


def search_share(answer: str, reference: str) -> float:
    """i / n: i is the index of the first line after the initial state that differs, or of the last compared; n lines in all.

    Lines of tries differ in what stands before "=" or in whether they drop the branch. As published: an answer that stops
    after the initial state gets -1 / n, one without an error at most (n - 1) / n.
    """
    ours, theirs = answer.strip().split("\n"), reference.strip().split("\n")
    if ours[0] != theirs[0]:
        return 0.0
    at = -1
    for at, (line, wanted) in enumerate(zip(ours[1:], theirs[1:], strict=False)):  # noqa: B007
        if line != wanted and not _same_try(line, wanted):
            break
    return at / (len(theirs) - 1)


def _same_try(line: str, wanted: str) -> bool:
    if "Pick two numbers" in wanted:
        return False
    drops = "drop this branch"
    return line.split("=")[0] == wanted.split("=")[0] and (drops in line) == (drops in wanted)
