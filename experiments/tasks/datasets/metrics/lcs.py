"""A longest common subsequence of two sequences; the two ROUGE packages differ in which one they take."""

from collections.abc import Sequence


def common_pairs(x: Sequence[str], y: Sequence[str]) -> list[tuple[int, int]]:
    """Positions (i, j) with x[i] == y[j] of one longest common subsequence, from the end of both.

    Walked from the end: matching tokens are taken; otherwise the last token of `x` goes where that keeps a strictly longer
    subsequence, else the last of `y`.
    """
    table = _lengths(x, y)
    i, j, pairs = len(x), len(y), []
    while i and j:
        if x[i - 1] == y[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif table[i - 1][j] > table[i][j - 1]:
            i -= 1
        else:
            j -= 1
    return pairs


def _lengths(x: Sequence[str], y: Sequence[str]) -> list[list[int]]:
    """Entry [i][j]: the longest common subsequence of the first i and the first j tokens."""
    table = [[0] * (len(y) + 1)]
    for token in x:
        above, row = table[-1], [0]
        for j, other in enumerate(y):
            row.append(above[j] + 1 if token == other else max(above[j + 1], row[j]))
        table.append(row)
    return table
