"""Stretches of one text that share tokens are not independent: they count as one where an interval is made of them."""

from collections.abc import Sequence

from experiments.tasks.ppl import HELD_BACK


def units(starts: Sequence[int | None], span: int = HELD_BACK) -> list[int]:
    """For each stretch the number of the group that it shares tokens with, directly or through others.

    Args:
        starts: where each begins in the text, in tokens; all contexts are of one length, so graded tokens overlap as starts do.
            None where it is not known: a group of its own.
        span: graded tokens of a stretch.

    Example:
        >>> units([0, 1000, 200, 400])
        [0, 1, 0, 0]
    """
    known = sorted({start for start in starts if start is not None})
    group, groups = 0, dict.fromkeys(known[:1], 0)
    for before, start in zip(known, known[1:], strict=False):
        group += start - before >= span
        groups[start] = group
    alone = iter(range(group + 1, group + 1 + len(starts)))
    return [next(alone) if start is None else groups[start] for start in starts]
