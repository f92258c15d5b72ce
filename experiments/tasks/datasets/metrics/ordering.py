"""Letters, percentages and orders (ZeroSCROLLS: quality, space_digest, book_sum_sort).

    near_percentage = 0.5 ** (|p - r| / 10);   concordance = share of pairs in the reference's order

Source: tau/zero_scrolls, metrics/accuracy.py, exp_similarity.py and concordance_index.py; the last calls lifelines, whose
index of distinct positions is this share.
"""

import re
from itertools import combinations

_LETTER = re.compile(r"\b[A-D]\b")
_PERCENTAGE = re.compile(r"(\d+\.?\d*)%")


def same_letter(answer: str, reference: str) -> float:
    """1 if the first letter from A to D that stands alone is the reference's. Raises ValueError for a reference without."""
    wanted, found = _LETTER.search(reference), _LETTER.search(answer)
    if wanted is None:
        raise ValueError(f"expected a reference with a letter from A to D, got {reference!r}")
    return float(found is not None and found.group() == wanted.group())


def near_percentage(answer: str, reference: str) -> float:
    """Half as much for every ten points away; 0 without a percentage. Raises ValueError for a reference without."""
    wanted, found = _PERCENTAGE.search(reference), _PERCENTAGE.search(answer)
    if wanted is None:
        raise ValueError(f"expected a reference with a percentage, got {reference!r}")
    return 0.5 ** (abs(float(wanted[1]) - float(found[1])) / 10) if found else 0.0


def concordance(answer: str, reference: str) -> float:
    """Share of the pairs of numbers in the reference's order; 0 where the numbers are not the same ones. One number is in order."""
    ours, theirs = _numbers(answer), _numbers(reference)
    if sorted(ours) != sorted(theirs) or len(set(theirs)) < len(theirs):
        return 0.0
    at = {number: place for place, number in enumerate(ours)}
    pairs = [at[a] < at[b] for a, b in combinations(theirs, 2)]
    return sum(pairs) / len(pairs) if pairs else float(bool(theirs))


def _numbers(text: str) -> list[int]:
    """What is left when all but digits, commas and white space goes; numbers too long to be one are left out."""
    return [int(part) for part in re.sub(r"[^0-9\s,]", "", text).replace(",", " ").split() if len(part) < 1000]
