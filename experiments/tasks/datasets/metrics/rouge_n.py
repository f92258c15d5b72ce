"""ROUGE-1, ROUGE-2 and ROUGE-L, words stemmed, as SCROLLS and ZeroSCROLLS count them (Lin, 2004).

Source: tau/zero_scrolls, metrics/rouge.py, which calls the package rouge_score. That it stems is SCROLLS's setting as we know it;
the file itself was not at hand.
"""

from functools import cache
from typing import Any


def rouge_123(answer: str, reference: str) -> dict[str, float]:
    """F of rouge1, rouge2 and rougeL.

    Raises:
        ModuleNotFoundError: the package rouge_score is not installed.
    """
    return {name: float(score.fmeasure) for name, score in _scorer().score(reference, answer).items()}


@cache
def _scorer() -> Any:
    try:
        from rouge_score import rouge_scorer
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("summaries are graded with the package rouge_score: pip install rouge_score==0.1.2") from error
    return rouge_scorer.RougeScorer(["rouge1", "rouge2", "rougeL"], use_stemmer=True)
