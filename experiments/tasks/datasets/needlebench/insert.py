"""Where NeedleBench puts needles, on token ids.

    several from a depth on:  p_0 = floor(n d / 100),  p_i = min(p_{i-1} + |needle_{i-1}| + n diff / 100, n + |needles before i|)
    and then every p_j is moved by the lengths of the needles before it once more, as published
"""

from collections.abc import Sequence

Ids = list[int]


def starts_from(length: int, depth: float, needles: Sequence[int], diff: float = 10) -> list[int]:
    """Where needles of these lengths begin, in the order they are inserted, each in the text that has those before it.

    Example:
        starts_from(1000, 40, [20, 25, 30]) == [400, 540, 690]
    """
    points: list[int] = []
    for i in range(len(needles)):
        point = int(length * (depth / 100)) if i == 0 else int(points[-1] + needles[i - 1] + length * (diff / 100))
        points.append(min(point, length + sum(needles[:i])))
    return [point + sum(needles[:i]) for i, point in enumerate(points)]


def starts_at(length: int, depths: Sequence[float], needles: Sequence[int]) -> list[int]:
    """The same for a needle at each depth."""
    before = [sum(needles[:i]) for i in range(len(needles))]
    return [min(int(length * (depth / 100)) + more, length + more) for depth, more in zip(depths, before, strict=True)]


def inserted(text: Sequence[int], needles: Sequence[Sequence[int]], starts: Sequence[int]) -> Ids:
    """The text with one needle after the other put where it begins."""
    found = list(text)
    for needle, start in zip(needles, starts, strict=True):
        found[start:start] = needle
    return found
