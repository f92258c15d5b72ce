"""Whether an answer names the right class, shared among the classes it names (LongBench: trec, lsht).

    score = [c in M] / |M|,  M = classes that the answer contains, less those that are a part of the reference c's name

Source: THUDM/LongBench, LongBench/metrics.py, classification_score. Its loop removes from the list it walks and so passes
over the class after a removed one; kept, since scores depend on it.
"""

from collections.abc import Sequence


def classification(answer: str, reference: str, classes: Sequence[str]) -> float:
    """Score of an answer among `classes`, in the order the data set lists them."""
    named = [name for name in classes if name in answer]
    at = 0
    while at < len(named):
        if named[at] in reference and named[at] != reference:
            del named[at]
        at += 1
    return 1 / len(named) if reference in named else 0.0
