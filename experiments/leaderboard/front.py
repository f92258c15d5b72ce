"""The Pareto front: rows that no other beats in both score and cost."""

from collections.abc import Sequence


def front(costs: Sequence[float | None], worths: Sequence[float], names: Sequence[str]) -> list[bool]:
    """Which rows are on it: none has at most their cost and at least their worth, unless it equals both and stands later.

    Args:
        costs: bytes or seconds, lower is better; a row of None is not on it.
        worths: scores, higher is better.
        names: of rows that are equal in both the first by name is on it.
    """
    on, best = [False] * len(costs), float("-inf")
    known = [i for i, cost in enumerate(costs) if cost is not None]
    for i in sorted(known, key=lambda i: (costs[i], -worths[i], names[i])):
        on[i] = worths[i] > best
        best = max(best, worths[i])
    return on
