"""RULER's two metrics for one answer: which references it contains, in either case (scripts/eval/synthetic/constants.py).

    all  = |{r in references : r in answer}| / |references|
    part = max over references of [r in answer]

The benchmark averages them over prompts and multiplies by 100; here a score is a share from 0 to 1.
"""

import re
from collections.abc import Sequence

_CONTROL = re.compile(r"[\x00-\x1f]")


def string_match_all(answer: str, references: Sequence[str]) -> float:
    """Share of the references that the answer contains."""
    found = _found(answer, references)
    return sum(found) / len(found)


def string_match_part(answer: str, references: Sequence[str]) -> float:
    """1 if the answer contains any of the references."""
    return float(any(_found(answer, references)))


def _found(answer: str, references: Sequence[str]) -> list[bool]:
    """The evaluation script first makes a line break of every control character and drops them at both ends."""
    if not references:
        raise ValueError("an answer is matched against at least one reference; got none")
    clean = _CONTROL.sub("\n", answer.strip()).strip().lower()
    return [reference.lower() in clean for reference in references]
