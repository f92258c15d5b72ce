"""F1 of the tokens that an answer and a reference share, each as often as both have it.

    P = |A ∩ R| / |A|,  R = |A ∩ R| / |R|,  F1 = 2PR / (P + R)   over multisets of tokens; 0 where nothing is shared

Sources: SQuAD (Rajpurkar et al., 2016); THUDM/LongBench, LongBench/metrics.py; OpenBMB/InfiniteBench, src/compute_scores.py.
"""

from collections import Counter
from collections.abc import Sequence

from experiments.tasks.datasets.metrics.normalize import chinese, english
from experiments.tasks.datasets.metrics.segment import words


def qa_f1(answer: str, reference: str) -> float:
    """Tokens are the words left by the English rule."""
    return shared_f1(english(answer).split(), english(reference).split())


def qa_f1_words_zh(answer: str, reference: str) -> float:
    """LongBench's Chinese form: tokens are jieba's words, normalized one by one; those that vanish do not count."""

    def tokens(text: str) -> list[str]:
        return [token for word in words(text) if (token := chinese(word))]

    return shared_f1(tokens(answer), tokens(reference))


def qa_f1_characters_zh(answer: str, reference: str) -> float:
    """InfiniteBench's Chinese form: every character left by the Chinese rule is a token."""
    return shared_f1(chinese(answer), chinese(reference))


def shared_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """F1 of two multisets of tokens."""
    shared = sum((Counter(answer) & Counter(reference)).values())
    if not shared:
        return 0.0
    precision, recall = shared / len(answer), shared / len(reference)
    return 2 * precision * recall / (precision + recall)
