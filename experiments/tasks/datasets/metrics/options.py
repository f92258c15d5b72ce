"""Answers that choose one of four options (InfiniteBench: code_debug, longbook_choice_eng).

References are the right option's text and its letter. Sources: OpenBMB/InfiniteBench, src/compute_scores.py,
get_score_one_code_debug and _longbook_choice_eng; NVIDIA/kvpress, evaluation/benchmarks/infinite_bench/calculate_metrics.py.
"""

import re
from collections.abc import Sequence

_BUG_OPENINGS = ("answer is:", "is:", "answer:", "correct option is:")
_BOOK_OPENINGS = ("answer is:", "answer:", "answer is", "option is")
_LAST_OF_TEN = re.compile(r"\b[A-J]\b(?!.*\b[A-J]\b)")
_LAST_OF_FOUR = re.compile(r"\b[A-D]\b(?!.*\b[A-D]\b)")


def chosen_bug(answer: str, references: Sequence[str]) -> float:
    """1 if the answer opens with the letter and "." or ":", or has either reference right after one of the openings."""
    text, (name, letter) = answer.strip(), references
    if text[:2] in (f"{letter}.", f"{letter}:"):
        return 1.0
    return _after_opening(_spaced(text, "\n`'\"-*", ("Option", "option")), _BUG_OPENINGS, (letter, name)) or 0.0


def chosen_bug_kvpress(answer: str, references: Sequence[str]) -> float:
    """kvpress's form: also 1 if the last letter from A to J of a line is right, or the answer opens with a reference."""
    text, (name, letter) = answer.strip(), references
    found = _LAST_OF_TEN.search(text)
    spaced = _spaced(text, "\n`'\"-*", ("Option", "option"))
    if (found and found.group() == letter) or spaced.startswith((letter, name)):
        return 1.0
    return _after_opening(spaced, _BUG_OPENINGS, (letter, name)) or 0.0


def chosen_option(answer: str, references: Sequence[str]) -> float:
    """1 if the first of these that is there is right: a letter at the start, the option's text as the whole answer, what
    follows an opening, the first word made of letters from A to D in their order."""
    text = answer.strip()
    if not text or text[0] in "ABCD":
        return float(text[:1] in references)
    if text in references:
        return 1.0
    spaced = _spaced(text, "\n\"'.,?!{}")
    after = _after_opening(spaced, _BOOK_OPENINGS, references)
    if after is not None:
        return after
    return float(next((word for word in spaced.split() if word in "ABCD"), None) in references)


def chosen_option_kvpress(answer: str, references: Sequence[str]) -> float:
    """kvpress's form: the letter alone is the reference, and it is enough that a line's last letter from A to D is right."""
    letters = references[1:]
    found = _LAST_OF_FOUR.search(answer.strip())
    return 1.0 if found and found.group() in letters else chosen_option(answer, letters)


def _spaced(text: str, marks: str, words: Sequence[str] = ()) -> str:
    """A space for every mark and word, then one space where several follow one another."""
    for taken in (*marks, *words):
        text = text.replace(taken, " ")
    return re.sub(" +", " ", text)


def _after_opening(text: str, openings: Sequence[str], right: Sequence[str]) -> float | None:
    """Whether a right text begins one character after the first opening that is there; None where none is."""
    for opening in openings:
        at = text.find(opening)
        if at >= 0:
            return float(text[at + len(opening) + 1 :].startswith(tuple(right)))
    return None
