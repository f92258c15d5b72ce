"""ROUGE-L of summaries as LongBench counts it: sentences end at full stops, and every word counts once.

    L = |⋃ over sentences r of the reference, a of the answer: words of LCS(r, a)|
    P = L / |words of the answer|,  R = L / |words of the reference|,  F = 2PR / (P + R + 1e-8)

Source: the package rouge 1.0.1 that THUDM/LongBench, LongBench/metrics.py calls ("rouge-l", "f"); Lin, 2004, section 3.2.
We differ: the package walks a subsequence by recursion, and where a pair of sentences overruns Python's limit (about 980
steps) the benchmark scores 0; here such a pair is scored like any other.
"""

from experiments.tasks.datasets.metrics.lcs import common_pairs
from experiments.tasks.datasets.metrics.segment import words


def rouge_l(answer: str, reference: str) -> float:
    """F of two texts whose words have white space between them; 0 where either has no sentence."""
    ours, theirs = _sentences(answer), _sentences(reference)
    if not ours or not theirs:
        return 0.0
    shared = {wanted[i] for wanted in theirs for given in ours for i, _ in common_pairs(wanted, given)}
    precision, recall = len(shared) / _distinct(ours), len(shared) / _distinct(theirs)
    return 2 * precision * recall / (precision + recall + 1e-8)


def rouge_l_zh(answer: str, reference: str) -> float:
    """F of two Chinese texts, words found by jieba; only "." ends a sentence, "。" does not."""
    return rouge_l(" ".join(words(answer)), " ".join(words(reference)))


def _sentences(text: str) -> list[list[str]]:
    """Words of each sentence; one of white space alone has the word ""."""
    return [sentence.split() or [""] for sentence in text.split(".") if sentence]


def _distinct(sentences: list[list[str]]) -> int:
    return len({word for sentence in sentences for word in sentence})
