"""AIME: its prompt, the two comparisons of answers, and means over sampled answers."""

import json
from dataclasses import replace

import pytest

import kvjax
from experiments.tasks.datasets import aime
from experiments.tasks.example import Read
from experiments.tasks.sampled import SampledAnswering
from tests.experiments.conftest import THINKING, byte_tokenizer


@pytest.fixture
def task(tmp_path):
    (tmp_path / "aime24.jsonl").write_text(json.dumps({"question": "What is {x}?", "answer": "033"}) + "\n")
    return aime.tasks(tmp_path)[0]


def test_the_prompt_is_that_of_the_reasoning_papers(talker, task):
    (made,) = task.examples(talker, 400, 1, 0, haystack=(), mode="seen")
    assert talker.decode(made.compressed) == (
        "You are given a math problem.\n\nProblem: What is {x}?\n\n You need to solve the problem step by step. First, you need to "
        "provide the chain-of-thought, then provide the final answer.\n\n Provide the final answer in the format: Final answer:  "
        "\\boxed{}"
    )
    assert made.task == "aime/24/whole" and made.new_tokens == 1024 - len(made.compressed) - 1 and made.references == ("033",)


def test_a_template_that_thinks_is_let_to(talker, task):
    """As Qwen3's, where thinking is the default and an empty thought ends it."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = THINKING
    lm = talker.replace(tokenizer=tokenizer)
    (made,) = task.examples(lm, 400, 1, 0, haystack=(), mode="seen")
    assert lm.decode(made.compressed).startswith("<user>You are") and lm.decode(made.fed) == "<bot>"


@pytest.mark.parametrize(
    ("answer", "exact", "integer", "answered"),
    [
        ("so \\boxed{033}", 1, 1, 1),
        ("so \\boxed{33}", 0, 1, 1),
        ("\\boxed{1} no: \\boxed{ 033 }", 0, 1, 1),  # the last one counts, its spaces too
        ("\\boxed{033} no: \\boxed{1}", 0, 0, 1),
        ("\\boxed{\\text{033}}", 0, 0, 1),
        ("033", 0, 0, 0),
        ("\\boxed{033", 0, 0, 1),
        ("", 0, 0, 0),
    ],
)
def test_both_comparisons(task, answer, exact, integer, answered):
    assert task.grade(answer, ("033",)) == exact
    assert task.also(answer, ("033",)) == {"integer_accuracy": integer, "answered": answered}


@pytest.mark.slow
def test_samples_are_averaged_and_drawn_alike_for_all_policies(talker, task):
    (made,) = task.examples(talker, 400, 1, 0, haystack=(), mode="seen")
    made, full = replace(made, new_tokens=5), kvjax.methods.full()
    cache = kvjax.compress(kvjax.prefill(talker, made.compressed), full)
    sampled = SampledAnswering(task, samples=3)
    (row,) = sampled.measure(talker, cache, full, [Read(made, None)])
    assert len(made.fed) + 3 <= row["read"] <= len(made.fed) + 3 * 5
    assert len(row["answers"]) == 3 and len(set(row["answers"])) > 1 and row["score"] == sum(row["scores"]) / 3 == 0
    assert sampled.measure(talker, cache, full, [Read(made, None)])[0] == row and row["answered"] == 0
    beside = sampled.measure(talker, kvjax.stack([cache, cache]), full, [Read(made, None)] * 2)
    assert [found["answers"] for found in beside] == [row["answers"]] * 2, "whatever is decoded beside it"


def test_bad_files_and_lengths_are_refused(talker, tmp_path, task):
    with pytest.raises(ValueError, match="never cut, --lengths says 20"):
        next(task.examples(talker, 20, 1, 0, haystack=(), mode="seen"))
    with pytest.raises(ValueError, match="length 1024 leaves no room"):
        next(task.examples(talker, 1024, 1, 0, haystack=(), mode="seen"))
    with pytest.raises(FileNotFoundError, match="no file .*aime25.jsonl"):
        next(aime.tasks(tmp_path)[1].examples(talker, 400, 1, 0, haystack=(), mode="seen"))
    (tmp_path / "aime25.jsonl").write_text(json.dumps({"question": "?", "answer": "x"}) + "\n")
    with pytest.raises(ValueError, match="expected a whole number as the answer, got 'x'"):
        next(aime.tasks(tmp_path)[1].examples(talker, 400, 1, 0, haystack=(), mode="seen"))
