"""LongBench v2: its prompt, the letter taken from an answer, and what a result row repeats."""

import json

import pytest

from experiments.tasks.datasets import longbench_v2
from experiments.tasks.datasets.longbench_v2 import LongBenchV2
from experiments.tasks.datasets.metrics.multiple_choice import letter, letter_anywhere, named_letter
from experiments.tasks.datasets.source import Local
from experiments.tasks.protocol import KVPRESS, OFFICIAL

ROW = {
    "_id": "66f", "domain": "Long-dialogue History Understanding", "sub_domain": "x", "difficulty": "hard", "length": "short",
    "question": " Who did it? ", "choice_A": "Ann ", "choice_B": "$C_A$", "choice_C": "Cy", "choice_D": "Di", "answer": "C",
    "context": "\n Ann {did} it; $Q$ \n",
}  # fmt: skip


def make(folder, protocol=OFFICIAL, **changes):
    (folder / "data.json").write_text(json.dumps([ROW | changes]), encoding="utf-8")
    (task,) = longbench_v2.tasks(folder, protocol)
    return task


def test_the_official_prompt_is_the_benchmarks(talker, tmp_path):
    """Stripped, and filled place by place: a place that the document holds is filled too, as pred.py does."""
    task = make(tmp_path)
    (made,) = task.examples(talker, 800, 1, 0, haystack=(), mode="seen")
    assert talker.decode(made.compressed) == (
        "Please read the following text and answer the question below.\n\n<text>\nAnn {did} it; Who did it?\n</text>\n\n"
        "What is the correct answer to this question: Who did it?\nChoices:\n(A) Ann\n(B) $C_A$\n(C) Cy\n(D) Di\n\n"
        'Format your response as follows: "The correct answer is (insert answer here)".'
    )
    assert made.fed == () and made.new_tokens == 128 and made.references == ("C",)
    assert made.meta == {
        "data": task.data.digest, "protocol": "official", "row": 0, "dropped_tokens": 0, "difficulty": "hard", "document": "short",
        "domain": ROW["domain"],
    }  # fmt: skip


def test_kvpress_asks_after_the_text(talker, tmp_path):
    """Not stripped, one line break fewer and no closing quote, as its create_huggingface_dataset.py has it."""
    (made,) = make(tmp_path, KVPRESS).examples(talker, 800, 1, 0, haystack=(), mode="unseen")
    assert talker.decode(made.compressed) == (
        "Please read the following text and answer the question below.\n<text>\n\n Ann {did} it; $Q$ \n\n</text>\n\n"
    )
    asked = talker.decode(made.fed)
    assert asked.startswith("What is the correct answer to this question:  Who did it? \nChoices:\n(A) Ann \n(B) $C_A$\n")
    assert asked.endswith("(insert answer here).\n") and made.new_tokens == 16


@pytest.mark.parametrize(
    ("answer", "found", "anywhere"),
    [  # extract_answer: the first letter in brackets, else the first bare one; kvpress: C anywhere after the phrase
        ("", None, 0),
        ("C", None, 0),
        ("The correct answer is (C)", "C", 1),
        ("The correct answer is C.", "C", 1),
        ("**The correct answer is (C)**", "C", 1),
        ("The correct answer is **C**", "C", 1),
        ("The correct answer is (A). No: The correct answer is (C)", "A", 1),
        ("The correct answer is A. The correct answer is (C)", "C", 1),  # brackets go first
        ("the correct answer is (C)", None, 0),
        ("The correct answer is (E)", None, 0),
        ("The correct answer is Cy", "C", 1),
        ("The correct answer is ( C )", None, 0),
        ("The correct answer is\n(C)", None, 0),
        ("The correct answer is (Ｃ)", None, 0),
        ("正确答案：The correct answer is (C)。", "C", 1),
        ("  The correct answer is B", "B", 0),
    ],
)
def test_the_letter_is_taken_as_the_benchmark_takes_it(answer, found, anywhere):
    assert named_letter(answer) == found
    assert letter(answer, ("C",)) == (found == "C") and letter_anywhere(answer, ("C",)) == anywhere


def test_each_protocol_has_its_grader(tmp_path):
    both = "The correct answer is (A). The correct answer is (C)"
    assert [make(tmp_path, protocol).grade(both, ("C",)) for protocol in (OFFICIAL, KVPRESS)] == [0, 1]


def test_a_missing_field_and_an_unknown_task_are_refused(tmp_path):
    file = tmp_path / "data.json"
    file.write_text(json.dumps([ROW, {name: value for name, value in ROW.items() if name != "choice_D"}]))
    with pytest.raises(ValueError, match="data.json, row 1: the row has no field 'choice_D', only _id"):
        len(LongBenchV2("0shot", Local(file)).rows)
    with pytest.raises(ValueError, match="no task 'cot', only 0shot"):
        LongBenchV2("cot", Local(file))
