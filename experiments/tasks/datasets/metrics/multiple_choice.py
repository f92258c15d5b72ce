"""The letter that an answer names after "The correct answer is" (LongBench v2).

Sources: THUDM/LongBench, pred.py, extract_answer; NVIDIA/kvpress, evaluation/benchmarks/longbenchv2/calculate_metrics.py.
"""

import re
from collections.abc import Sequence

_IN_BRACKETS = re.compile(r"The correct answer is \(([A-D])\)")
_BARE = re.compile(r"The correct answer is ([A-D])")


def named_letter(answer: str) -> str | None:
    """The first letter in brackets, else the first one without; asterisks do not count; None where there is neither."""
    plain = answer.replace("*", "")
    found = _IN_BRACKETS.search(plain) or _BARE.search(plain)
    return found.group(1) if found else None


def letter(answer: str, references: Sequence[str]) -> float:
    """1 if the named letter is the reference.

    We differ: the benchmark leaves prompts with an empty answer out of its mean; here they score 0.
    """
    return float(named_letter(answer.strip()) == references[0])


def letter_anywhere(answer: str, references: Sequence[str]) -> float:
    """kvpress's form: 1 if the reference is named anywhere, also after another letter."""
    plain, right = answer.replace("*", ""), references[0]
    return float(any(f"The correct answer is {form}" in plain for form in (f"({right})", right)))
