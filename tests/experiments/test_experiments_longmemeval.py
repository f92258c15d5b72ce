"""LongMemEval: its prompt, the judge's prompts and verdicts, and the grader without a judge, from a file in the official layout."""

import json
from dataclasses import replace

import pytest

from experiments.tasks.answering import AnsweringInParts
from experiments.tasks.datasets import longmemeval
from experiments.tasks.datasets.judge import ModelJudge
from experiments.tasks.datasets.longmemeval import Contained, LongMemEval, judge_prompt, said_yes, sessions
from experiments.tasks.datasets.source import Local
from experiments.tasks.split import SPLIT

ROW = {
    "question_id": "q1", "question_type": "single-session-user", "question": "Where do I live?", "answer": "The Hague",
    "question_date": "2023/06/01 (Thu) 10:00", "haystack_session_ids": ["b", "a"],
    "haystack_dates": ["2023/05/02 (Tue) 09:00", "2023/05/01 (Mon) 09:00"],
    "haystack_sessions": [
        [{"role": "user", "content": "I moved to The Hague.", "has_answer": True}, {"role": "assistant", "content": "Nice."}],
        [{"role": "user", "content": "Hi {x}"}],
    ],
    "answer_session_ids": ["b"],
}  # fmt: skip
ASKED = "\n\nCurrent Date: 2023/06/01 (Thu) 10:00\nQuestion: Where do I live?\nAnswer:"


def write(folder, *rows):
    (folder / "longmemeval_s_cleaned.json").write_text(json.dumps(rows), encoding="utf-8")
    return folder


def contained(folder, *rows):
    write(folder, *rows)
    return next(task for task in longmemeval.tasks(folder) if task.task == "s_contained")


def test_sessions_stand_in_the_order_of_their_dates(reader, tmp_path):
    (made,) = contained(tmp_path, ROW).examples(reader, 900, 1, 0, haystack=(), mode="unseen")
    assert reader.decode(made.compressed) == (
        "I will give you several history chats between you and a user. Please answer the question based on the relevant chat "
        "history.\n\n\nHistory Chats:\n\n"
        '\n### Session 1:\nSession Date: 2023/05/01 (Mon) 09:00\nSession Content:\n\n[{"role": "user", "content": "Hi {x}"}]\n'
        "\n### Session 2:\nSession Date: 2023/05/02 (Tue) 09:00\nSession Content:\n\n"
        '[{"role": "user", "content": "I moved to The Hague."}, {"role": "assistant", "content": "Nice."}]\n'
    )
    assert reader.decode(made.fed) == ASKED + "\n" and made.new_tokens == 500
    assert made.meta["question_id"] == "q1" and made.meta["grader"] == "contained" and made.meta["dropped_tokens"] == 0


def test_a_long_history_loses_its_end_and_keeps_its_question(reader, tmp_path):
    task = contained(tmp_path, ROW)
    whole, short = (next(task.examples(reader, n, 1, 0, haystack=(), mode="seen")) for n in (900, 200))
    assert short.context == whole.context[:200] and short.question == whole.question
    assert short.meta["dropped_tokens"] == len(whole.context) - 200
    assert reader.decode(short.compressed).endswith(ASKED)


@pytest.mark.parametrize(
    ("answer", "score"),
    [  # words of the reference in a row, without articles, case and punctuation
        ("the hague", 1), ("You live in Hague.", 1), ("You live in The Hague!", 1), ("The Hagues", 0), ("", 0), ("Amsterdam", 0),
        ("HAGUE", 1), ("a Hague, b", 1), ("Ha gue", 0), ("海牙", 0),
    ],
)  # fmt: skip
def test_without_a_judge_the_answer_contains_the_reference(tmp_path, answer, score):
    task = contained(tmp_path, ROW)
    assert task.grade(answer, task.references(ROW)) == score


def test_what_only_a_judge_can_grade_is_left_out(tmp_path):
    hard = [ROW | {"question_id": "q2_abs"}, ROW | {"question_type": "single-session-preference"}]
    assert [row["question_id"] for row in contained(tmp_path, *hard, ROW).rows] == ["q1"]
    assert len(next(task for task in longmemeval.tasks(tmp_path) if task.task == "s").rows) == 3


def test_the_judge_is_asked_as_the_benchmark_asks():
    ask = lambda **changes: judge_prompt("Here.", Contained("s", Local("x")).references(ROW | changes))  # noqa: E731
    plain = ask()
    assert plain.startswith("I will give you a question, a correct answer, and a response from a model. Please answer yes if")
    assert plain.endswith(
        "\n\nQuestion: Where do I live?\n\nCorrect Answer: The Hague\n\nModel Response: Here.\n\n"
        "Is the model response correct? Answer yes or no only."
    )
    assert plain == ask(question_type="multi-session") == ask(question_type="single-session-assistant")
    assert "off-by-one" in ask(question_type="temporal-reasoning") and "updated answer" in ask(question_type="knowledge-update")
    assert "\n\nRubric: The Hague\n\n" in ask(question_type="single-session-preference")
    abstained = ask(question_id="q1_abs", question_type="temporal-reasoning")
    assert "\n\nExplanation: The Hague\n\n" in abstained and abstained.endswith("as unanswerable? Answer yes or no only.")


def test_a_verdict_is_yes_where_it_says_so():
    assert [said_yes(word) for word in ("yes", "Yes.", "No", "", "no, not YES", "eyes")] == [True, True, False, False, True, True]


class Scripted:
    """A judge whose words are known: yes where the right answer is in the response."""

    name = "scripted"

    def answer(self, prompt):
        right, response = (prompt.split(mark)[1].split("\n\n")[0] for mark in ("Correct Answer: ", "Model Response: "))
        return "Yes" if right in response else "No"


def test_a_judge_grades_every_answer(talker, tmp_path):
    write(tmp_path, ROW)
    task = LongMemEval("s", Local(tmp_path / "longmemeval_s_cleaned.json"), SPLIT, judge=Scripted())
    references = task.references(ROW)
    assert [AnsweringInParts(task).graded(text, references)["score"] for text in (" In The Hague. ", "No idea")] == [1, 0]
    assert task.meta(ROW)["grader"] == "scripted"
    other = replace(task, judge=Renamed())
    assert task.meta(ROW)["data"] != other.meta(ROW)["data"], "rows of two graders are not averaged"


class Renamed(Scripted):
    name = "another"


@pytest.mark.slow
def test_a_model_of_the_library_can_judge(talker):
    words = ModelJudge(talker, new_tokens=3).answer("Is it so? Answer yes or no only.")
    assert words == ModelJudge(talker, new_tokens=3).answer("Is it so? Answer yes or no only.")
    assert 0 < len(words.encode("utf-8", "replace")) <= 9 and ModelJudge(talker).name == "judge toy"


def test_without_a_judge_the_error_says_what_to_set(talker, tmp_path, monkeypatch):
    monkeypatch.delenv("KVJAX_JUDGE", raising=False)
    write(tmp_path, ROW)
    task = next(task for task in longmemeval.tasks(tmp_path) if task.task == "s")
    with pytest.raises(ValueError, match="no judge: set KVJAX_JUDGE to a model .* longmemeval/oracle_contained/split"):
        next(task.examples(talker, 500, 1, 0, haystack=(), mode="unseen"))


def test_other_layouts_are_refused(talker, tmp_path):
    with pytest.raises(ValueError, match="needs a list of sessions and a date for each"):
        sessions(ROW | {"haystack_dates": []})
    with pytest.raises(ValueError, match="a session that is no list of {role, content}"):
        sessions(ROW | {"haystack_sessions": [[{"role": "user"}], []]})
    with pytest.raises(ValueError, match="has type 'riddle', none of single-session-user"):
        contained(tmp_path, ROW | {"question_type": "riddle"}).rows[0]
    with pytest.raises(ValueError, match="longmemeval_s_cleaned.json, row 0: the row has no field 'question_date'"):
        contained(tmp_path, {name: value for name, value in ROW.items() if name != "question_date"}).rows[0]
    with pytest.raises(ValueError, match="kvpress has no rules for it"):
        contained(tmp_path, ROW).kvpress()
