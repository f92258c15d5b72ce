"""Answers that hold a word (InfiniteBench: kv_retrieval, longdialogue_qa_eng).

Sources: OpenBMB/InfiniteBench, src/compute_scores.py, get_score_one_kv_retrieval and _longdialogue_qa_eng; NVIDIA/kvpress,
evaluation/benchmarks/infinite_bench/calculate_metrics.py.
"""

from collections.abc import Sequence

_MARKS = str.maketrans(dict.fromkeys("\n:\"'.,?!{}", " "))


def has_word(answer: str, references: Sequence[str]) -> float:
    """1 if a word of the answer is the reference, punctuation aside."""
    return float(references[0] in _words(answer))


def has_name(answer: str, references: Sequence[str]) -> float:
    """1 if a word of the answer, in capitals, is the first reference; a name of two words is never found."""
    return float(references[0] in [word.upper() for word in _words(answer)])


def has_any_name(answer: str, references: Sequence[str]) -> float:
    """kvpress's form: 1 if the answer contains any of the references, in either case."""
    return float(any(name.upper() in answer.strip().upper() for name in references))


def _words(answer: str) -> list[str]:
    return answer.strip().translate(_MARKS).split()
