"""Answers that are numbers (InfiniteBench: passkey, number_string, code_run, math_find, math_calc).

Source: OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_passkey, _number_string, _code_run, _math_find and
_math_calc (without its exception for GPT-4).
"""

import re
from collections.abc import Sequence

_DIGITS = re.compile(r"[0-9]+")
_NUMBER = re.compile(r"\d+\.\d+|\d+")
_QUOTES = str.maketrans(dict.fromkeys("\n.`'\":", " "))


def first_digits(answer: str, references: Sequence[str]) -> float:
    """1 if the first run of digits is the reference, digit by digit."""
    found = _DIGITS.search(answer)
    return float(found is not None and found.group() == references[0])


def last_integer(answer: str, references: Sequence[str]) -> float:
    """1 if the last word is an integer equal to the reference; marks that may stand around it are no part of it."""
    words = answer.strip().translate(_QUOTES).split()
    try:
        return float(bool(words) and int(words[-1]) == int(references[0]))
    except ValueError:
        return 0.0


def first_number(answer: str, references: Sequence[str]) -> float:
    """1 if the first number, with decimals if it has any and without its sign, equals the reference.

    We differ: where an integer is asked for and the answer has decimals the benchmark's code ends in an error; here 0.
    """
    found = _NUMBER.search(answer)
    kind = float if "." in references[0] else int
    try:
        return float(found is not None and kind(found.group()) == kind(references[0]))
    except ValueError:
        return 0.0


def leading_values(answer: str, references: Sequence[str]) -> float:
    """Share of the reference's integers that the answer's runs of digits repeat from the first on, without a mistake."""
    wanted = re.findall(r"-?[0-9]+", references[0])
    right = 0
    for given, value in zip(_DIGITS.findall(answer), wanted, strict=False):
        if (given.lstrip("0") or "0") != value:  # as text: a run may be longer than Python turns into an int
            break
        right += 1
    return right / len(wanted)
