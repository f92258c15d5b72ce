"""Metrics against their definitions: by hand, and against the packages that define them (`data/metric_values.json`).

That file holds what rouge, rouge_score, jieba and fuzzywuzzy returned for texts of ours; it says which versions.
"""

import json
import sys
from pathlib import Path

import pytest

from experiments.tasks.datasets.metrics import segment
from experiments.tasks.datasets.metrics.classification import classification
from experiments.tasks.datasets.metrics.code_similarity import code_similarity
from experiments.tasks.datasets.metrics.normalize import chinese, english
from experiments.tasks.datasets.metrics.qa_f1 import qa_f1, qa_f1_characters_zh, qa_f1_words_zh
from experiments.tasks.datasets.metrics.retrieval import count, retrieval, retrieval_zh
from experiments.tasks.datasets.metrics.rouge_l import rouge_l, rouge_l_zh
from experiments.tasks.datasets.metrics.rouge_lsum import rouge_lsum

VALUES = json.loads((Path(__file__).parents[1] / "data" / "metric_values.json").read_text(encoding="utf-8"))


def test_normalizing_drops_articles_after_punctuation():
    assert english("The  cat, a hat; AN umbrella!") == "cat hat umbrella"
    assert english("a-b the-end") == "ab theend"  # the hyphen goes first, so no article is left to drop
    assert english("“Curly” naïve – dash") == "“curly” naïve – dash"  # only ASCII punctuation goes
    assert chinese("“北 京”，ABC。\n完") == "北京abc完"


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [  # 2PR/(P+R) with tokens counted by hand after normalizing
        ("", "Paris", 0),
        ("Paris", "", 0),
        ("the", "a", 0),  # nothing is left of either
        ("Paris", "paris.", 1),
        ("The Eiffel Tower", "Eiffel Tower", 1),
        ("in Paris France", "Paris", 2 * (1 / 3) * 1 / (1 / 3 + 1)),
        ("red red blue", "red blue blue", 2 / 3),  # shared: one red, one blue
        ("Zoë Ångström", "zoë ångström", 1),
        ("naïve", "naive", 0),
        ("no\nyes", "yes no", 1),  # order does not count
        ("42 km", "42", 2 * 0.5 / 1.5),
        ("北京 大学", "北京", 2 * 0.5 / 1.5),  # words are what white space parts
    ],
)
def test_f1_of_english_tokens(answer, reference, score):
    assert qa_f1(answer, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [  # characters counted by hand; punctuation and white space are gone
        ("", "北京", 0),
        ("。！", "北京", 0),
        ("北京", "北京。", 1),
        ("北 京", "北京", 1),
        ("京北", "北京", 1),
        ("北京大学", "北京", 2 * 0.5 / 1.5),
        ("田", "田立帆", 2 * (1 / 3) / (4 / 3)),
        ("人人", "人", 2 * 0.5 / 1.5),
        ("ABC", "abc", 1),
        ("胡一刀，马行空", "胡一刀、马行空", 1),
        ("上海", "北京", 0),
    ],
)
def test_f1_of_chinese_characters(answer, reference, score):
    assert qa_f1_characters_zh(answer, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [  # over the words that data/metric_values.json lists, less the punctuation
        ("", "会议", 0),
        ("！？。", "会议", 0),
        ("会议总结。", "会议", 2 * 0.5 / 1.5),
        ("会议讨论了明年的预算。", "会议讨论了明年的预算。", 1),
        ("研究生命起源", "研究生命的起源", 2 * 1 * 0.75 / 1.75),
        ("他来到北京大学读书", "北京大学是一所大学", 0.25),  # one of four words each
        ("答案是42。", "42", 2 * (1 / 3) / (4 / 3)),
        ("胡一刀、马行空", "马行空, 胡一刀", 1),
        ("Python 3.12 很快", "很快的 Python", 2 * (2 / 3) * (2 / 3) / (4 / 3)),
        ("不知道", "段誉和虚竹", 0),
        ("会议讨论了今年的预算和人员安排。", "与会者讨论明年预算。", 2 * (2 / 9) * 0.5 / (2 / 9 + 0.5)),
    ],
)
def test_f1_of_chinese_words(answer, reference, score):
    pytest.importorskip("jieba")
    assert qa_f1_words_zh(answer, reference) == pytest.approx(score)


@pytest.mark.parametrize(("text", "words"), VALUES["words"].items())
def test_chinese_words_are_jiebas(text, words):
    pytest.importorskip("jieba")
    assert segment.words(text) == words


@pytest.mark.parametrize(("answer", "reference", "score"), VALUES["rouge_l"])
def test_rouge_l_is_the_packages(answer, reference, score):
    assert rouge_l(answer, reference) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(("answer", "reference", "score"), VALUES["rouge_l_zh"])
def test_chinese_rouge_l_is_the_packages(answer, reference, score):
    pytest.importorskip("jieba")
    assert rouge_l_zh(answer, reference) == pytest.approx(score, abs=1e-12)


@pytest.mark.parametrize(("answer", "reference", "score"), VALUES["rouge_lsum"])
def test_rouge_lsum_is_the_packages(answer, reference, score):
    assert rouge_lsum(answer, reference) == pytest.approx(score, abs=1e-12)


def test_rouge_l_of_a_sentence_too_long_to_recurse():
    """600 words each, half of them shared: P = R = 300 / 600."""
    ours = " ".join(f"s{i} a{i}" for i in range(300))
    theirs = " ".join(f"s{i} b{i}" for i in range(300))
    assert rouge_l(ours, theirs) == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [  # first line without `, # or //, then difflib's ratio in whole percent (VALUES["ratio"] has the same pairs of lines)
        ("", "", 1),
        ("", "return x", 0),
        ("    return x\n", "    return x", 1),
        ("# comment\n    return x", "    return x", 1),
        ("```python\nx = 1\n```", "x = 1", 1),
        ("// c\nint a = 0;", "int a = 0;", 1),
        ("#only\n#comments", "x", 0),
        ("\n\nself.value = value\nmore", "self.value = other", 0.78),  # 14 of 18 and 18: 28/36
        ("def f(a, b):", "def g(a, c):", 0.83),  # 10 of 12 and 12
        ("打印(值)", "打印(数值)", 0.91),  # 5 of 5 and 6: 10/11
        ("\n\n`a`\n\nx", "x", 0),  # the empty line comes first
    ],
)
def test_code_is_compared_by_its_first_line(answer, reference, score):
    assert code_similarity(answer, reference) == pytest.approx(score)


@pytest.mark.parametrize(
    ("line", "reference", "score"),
    [case for case in VALUES["ratio"] if not any(mark in case[0] for mark in ("`", "#", "//"))],
)
def test_lines_of_code_are_as_alike_as_fuzzywuzzy_says(line, reference, score):
    assert code_similarity(line, reference) == score


CLASSES = ["Food", "Food web", "Web", "体育", "体育新闻", "Date"]


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [  # classes named, less those that are a part of the reference's own name; shared among the rest
        ("", "Food", 0),
        ("Food", "Food", 1),
        ("food", "Food", 0),
        ("It is a Date.", "Date", 1),
        ("Food or Date", "Food", 1 / 2),
        ("Food web", "Food web", 1),  # "Food" is a part of the reference
        ("Food web", "Food", 1 / 2),  # "Food web" is not a part of "Food"
        ("Food, Web, Date", "Web", 1 / 3),
        ("Web", "Food web", 0),
        ("体育新闻", "体育新闻", 1),
        ("体育新闻", "体育", 1 / 2),
    ],
)
def test_classification_shares_the_point(answer, reference, score):
    assert classification(answer, reference, CLASSES) == pytest.approx(score)


def test_classification_passes_over_the_class_after_a_removed_one():
    """Both "a" and "b" are parts of "abc"; removing "a" from the list being walked passes over "b", so 1 of 2."""
    assert classification("abc", "abc", ["a", "b", "abc"]) == 1 / 2


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("", 0),
        ("none", 0),
        ("7", 1),
        ("Paragraph 7", 1),
        ("Paragraph 7 or Paragraph 8", 1 / 2),
        ("7 7 8 9", 1 / 2),
        ("17", 0),
        ("07", 0),
        ("7.5", 1 / 2),
        ("７", 0),  # a number, but not the same text
        ("段落7", 1),
        ("-7", 1),
    ],
)
def test_retrieval_and_count_share_the_point_among_the_numbers(answer, score):
    assert retrieval(answer, "Paragraph 7") == count(answer, "7") == retrieval_zh(answer, "段落7") == score


def test_a_reference_without_a_paragraph_is_refused():
    with pytest.raises(ValueError, match="'Paragraph 7', got 'Section 7'"):
        retrieval("7", "Section 7")


def test_without_jieba_the_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "jieba", None)
    segment._jieba.cache_clear()
    with pytest.raises(ModuleNotFoundError, match="pip install jieba"):
        rouge_l_zh("会议", "会议")
