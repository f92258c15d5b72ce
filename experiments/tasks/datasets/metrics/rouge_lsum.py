"""ROUGE-Lsum as InfiniteBench counts it for summaries of books: sentences end at line breaks, words count as often as they come.

    hits = Σ over lines r of the reference: tokens of ⋃ over lines a of the answer LCS(r, a), each as often as both texts have it
    P = hits / |answer|,  R = hits / |reference|,  F = 2PR / (P + R)

Source: the package rouge_score 0.1.2 (Lin, 2004, section 3.2; ROUGE-1.5.5), without stemming, as `evaluate` calls it for
OpenBMB/InfiniteBench, src/compute_scores.py. Tokens are runs of a-z and 0-9, so text of another script has none and scores 0.
"""

import re
from collections import Counter

from experiments.tasks.datasets.metrics.lcs import common_pairs

_TOKEN = re.compile(r"[a-z0-9]+")


def rouge_lsum(answer: str, reference: str) -> float:
    """F of two texts; 0 where either has no token."""
    ours, theirs = _lines(answer), _lines(reference)
    left, wanted = Counter(sum(ours, [])), Counter(sum(theirs, []))
    hits = 0
    for line in theirs:
        for i in sorted({i for given in ours for _, i in common_pairs(given, line)}):
            if left[line[i]] > 0 and wanted[line[i]] > 0:
                hits += 1
                left[line[i]] -= 1
                wanted[line[i]] -= 1
    if not hits:
        return 0.0
    precision, recall = hits / sum(map(len, ours)), hits / sum(map(len, theirs))
    return 2 * precision * recall / (precision + recall)


def _lines(text: str) -> list[list[str]]:
    return [_TOKEN.findall(line.lower()) for line in text.split("\n") if line]
