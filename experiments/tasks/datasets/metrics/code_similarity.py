"""How alike the first line of code in an answer and the reference line are (LongBench: lcc, repobench-p).

    score = round(100 · 2M / T) / 100;  M: characters in matching blocks of Ratcliff and Obershelp, T: characters of both

Source: THUDM/LongBench, LongBench/metrics.py, code_sim_score, with `fuzz.ratio` of fuzzywuzzy 0.18.0, which is difflib's
ratio unless the package python-Levenshtein happens to be there; the benchmark's requirements do not list it.
"""

from difflib import SequenceMatcher


def code_similarity(answer: str, reference: str) -> float:
    """Similarity of the reference and the first line without a backquote, "#" or "//"; two empty texts are alike."""
    line = next((line for line in answer.lstrip("\n").split("\n") if not any(mark in line for mark in ("`", "#", "//"))), "")
    return round(100 * SequenceMatcher(None, line, reference).ratio()) / 100
