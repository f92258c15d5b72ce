"""What SCBench grades the answer of a turn by (scbench/compute_scores.py and repo_qa_utils.py), from 0 to 1."""

import re
import warnings
from collections.abc import Callable, Sequence

from experiments.tasks.datasets.metrics import numbers, options
from experiments.tasks.datasets.metrics.qa_f1 import qa_f1_characters_zh
from experiments.tasks.datasets.metrics.rouge_lsum import rouge_lsum

Grade = Callable[[str, Sequence[str]], float]
#: From here on a function counts as repeated.
SIMILAR = 0.8
_NUMBER = re.compile(r"\d+\.\d+|\d+")
_BLOCK = re.compile(r"^```(?:\w+)?\s*\n(.*?)(?=^```)```", re.DOTALL | re.MULTILINE)


def contains(answer: str, references: Sequence[str]) -> float:
    """1 if the answer contains the reference (kv, prefix_suffix)."""
    return float(references[0] in answer)


def contains_any(answer: str, references: Sequence[str]) -> float:
    """1 if the answer contains any reference, in either case (qa_eng, many_shot)."""
    return float(any(reference.upper() in answer.strip().upper() for reference in references))


def share_contained(answer: str, references: Sequence[str]) -> float:
    """Share of the references that the answer contains, in either case, rounded to two digits (vt)."""
    return round(sum(reference.lower() in answer.lower() for reference in references) / len(references), 2)


def first_number(answer: str, references: Sequence[str]) -> float:
    """1 if the first number, without its sign, is the reference; of an integer the decimals do not count (mf)."""
    found = _NUMBER.search(answer)
    if found is None:
        return 0.0
    number = float(found.group())
    return float(number == float(references[0]) if "." in references[0] else int(number) == int(references[0]))


def best_f1_zh(answer: str, references: Sequence[str]) -> float:
    """The best F1 of characters over the references (qa_chn)."""
    return max(qa_f1_characters_zh(answer, reference) for reference in references)


def summary(answer: str, references: Sequence[str]) -> float:
    """ROUGE-Lsum with the reference."""
    return rouge_lsum(answer, references[0])


def repeats_function(answer: str, references: Sequence[str]) -> float:
    """1 if the answer's code is most like the first reference, of all functions asked for in its repository, by 0.8 or more.

    We differ: the first fenced block is compared whole; the benchmark takes the first function that tree-sitter finds in it.
    """
    blocks = _BLOCK.findall(answer.strip())
    code = blocks[0] if blocks else answer.strip()
    similar = [function_similarity(code, reference) for reference in references]
    return float(similar[0] >= SIMILAR and similar[0] == max(similar))


def function_similarity(code: str, reference: str) -> float:
    """BLEU of words between white space, smoothed by Chen and Cherry's method 4.

    Raises:
        ModuleNotFoundError: the package nltk is not installed.
    """
    try:
        from nltk.translate.bleu_score import SmoothingFunction, sentence_bleu
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError("functions are compared with the package nltk: pip install nltk") from error
    ours, theirs = (re.split(r"\s+", text.strip()) for text in (code, reference))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of texts with fewer than four words
        return float(sentence_bleu([theirs], ours, smoothing_function=SmoothingFunction().method4))


GRADES: dict[str, Grade] = {
    "kv": contains,
    "prefix_suffix": contains,
    "vt": share_contained,
    "repoqa": repeats_function,
    "qa_eng": contains_any,
    "qa_chn": best_f1_zh,
    "choice_eng": options.chosen_option,
    "many_shot": contains_any,
    "summary": summary,
    "mf": first_number,
    "passkey": numbers.first_digits,
}
