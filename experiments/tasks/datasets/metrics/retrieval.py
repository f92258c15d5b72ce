"""The share of the numbers in an answer that are the right one (LongBench: passage_retrieval, passage_count).

    score = |{n in numbers : n = right}| / |numbers|,  0 where the answer has no number; numbers are compared as text

Source: THUDM/LongBench, LongBench/metrics.py, retrieval_score, retrieval_zh_score and count_score.
"""

import re

_NUMBER = re.compile(r"\d+")


def retrieval(answer: str, reference: str) -> float:
    """The right number is the one after "Paragraph " in the reference."""
    return _share(answer, _named("Paragraph ", reference))


def retrieval_zh(answer: str, reference: str) -> float:
    """The right number is the one after "段落" in the reference."""
    return _share(answer, _named("段落", reference))


def count(answer: str, reference: str) -> float:
    """The reference is the right number."""
    return _share(answer, reference)


def _named(label: str, reference: str) -> str:
    found = re.search(rf"{label}(\d+)", reference)
    if found is None:
        raise ValueError(f"expected a reference such as {label + '7'!r}, got {reference!r}")
    return found.group(1)


def _share(answer: str, right: str) -> float:
    numbers = _NUMBER.findall(answer)
    return numbers.count(right) / len(numbers) if numbers else 0.0
