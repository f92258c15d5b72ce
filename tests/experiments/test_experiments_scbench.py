"""SCBench: prompts of both modes, sessions over one cache, and the graders, from small files in the official layout."""

import json
from dataclasses import replace

import pytest

import kvjax
from experiments.tasks.datasets import scbench
from experiments.tasks.datasets.scbench.grades import GRADES, function_similarity
from experiments.tasks.datasets.scbench.session import answered, row_of
from tests.experiments.conftest import PLAIN, byte_tokenizer

CODE = "def add(a, b):\n    total = a + b\n    return total"
OTHER = "def sub(a, b):\n    total = a - b\n    return total"
ASK = [{"input": "The largest number is:", "answer": 9}, {"input": "The smallest number is:", "answer": 1}]
ROWS = {
    "kv": {"context": '{"a": "b"}', "multi_turns": [{"input": 'Key: "a"', "answer": "b"}, {"input": 'Key: "c"', "answer": "d"}]},
    "prefix_suffix": {"context": "ab", "multi_turns": [{"input": "a?", "answer": "ab"}]},
    "vt": {"context": "VAR", "multi_turns": [{"input": "which?", "answer": ["AA", "BB", "CC"]}]},
    "repoqa": {"context": CODE + OTHER, "repo": "r", "lang": "python", "multi_turns": [
        {"input": "adds", "answer": CODE, "name": "add"}, {"input": "subtracts", "answer": OTHER, "name": "sub"}]},
    "qa_eng": {"context": "A book.", "multi_turns": [{"input": "Who?", "answer": "Ann"}]},
    "qa_chn": {"context": "书。", "multi_turns": [{"input": "谁？", "answer": "田立帆"}]},
    "choice_eng": {"context": "A book.", "multi_turns": [
        {"input": "Who?", "answer": "Ann", "options": ["Bo", "Ann", "Cy", "Di"]},
        {"input": "Why?", "answer": "Cy", "options": ["Bo", "Ann", "Cy", "Di"]}]},
    "many_shot": {"context": "shots", "multi_turns": [{"input": "Q", "answer": "(A)"}]},
    "summary": {"context": "papers", "multi_turns": [{"input": "Sum 1", "answer": "a b"}, {"input": "Sum 2", "answer": "c"}]},
    "mf": {"context": "[1, 9]", "multi_turns": ASK},
    "summary_with_needles": {"context": "papers", "multi_turns": [
        {"input": "Sum", "answer": "a b", "task": "scbench_summary"}, {"input": "Key?", "answer": "7", "task": "scbench_passkey"}]},
    "repoqa_and_kv": {"context": "code", "repo": "r", "lang": "python", "multi_turns": [
        {"input": "adds", "answer": CODE, "name": "add", "task": "scbench_repoqa"},
        {"input": "k", "answer": "v", "task": "scbench_kv"}]},
}  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    for name, row in ROWS.items():
        (tmp_path / f"scbench_{name}.jsonl").write_text(json.dumps({"id": 0} | row, ensure_ascii=False) + "\n")
    return tmp_path


def make(lm, folder, name, mode, length=3000):
    task = next(task for task in scbench.tasks(folder) if (task.task, task.protocol.name) == (name, mode))
    return next(task.examples(lm, length, 1, 0, haystack=(), mode=task.MODES[0]))


def texts(lm, session):
    return [lm.decode(session.compressed), *(lm.decode(turn.fed) for turn in session.turns)]


def test_all_tasks_make_prompts_in_both_modes(reader, folder):
    made = scbench.tasks(folder)
    assert len(made) == 24
    for task in made:
        session = make(reader, folder, task.task, task.protocol.name)
        assert session.task == f"scbench/{task.task}/{task.protocol.name}" and len(session.turns) == len(session.references)


def test_apart_each_question_follows_the_context(reader, folder):
    found = lambda name: texts(reader, make(reader, folder, name, "scdq"))  # noqa: E731
    head = "Extract the value corresponding to the specified key in the JSON object below.\n\n"
    assert found("kv") == [head + '{"a": "b"}', 'Key: "a"', 'Key: "c"']
    assert found("mf") == [
        "The largest number is:\n\n[1, 9]", "What is the largest number?\n\nThe largest number is:",
        "What is the smallest number?\n\nThe smallest number is:",
    ]  # fmt: skip
    assert found("choice_eng")[1].startswith("Question: Who?\nA. Bo\nB. Ann\nC. Cy\nD. Di\n\n")
    assert found("qa_chn") == ["阅读以下书籍然后回答问题。\n\n书。", "问题：谁？\n答案："]


def test_in_turn_the_reference_answers_stand_between(reader, folder):
    session = make(reader, folder, "kv", "multi_turn")
    assert texts(reader, session)[0].endswith('{"a": "b"}\n\nKey: "a"') and texts(reader, session)[1:] == ["", '\n\nKey: "c"']
    assert [reader.decode(turn.told) for turn in session.turns] == ["b", "d"]
    assert session.room == len('\n\nKey: "c"') + 1 + 150
    (first, *_) = texts(reader, make(reader, folder, "mf", "multi_turn"))
    assert first == "What is the largest number?\n\n[1, 9]\n\nThe largest number is:"


@pytest.mark.parametrize("template", [None, PLAIN])
def test_the_choice_is_asked_for_as_published(reader, folder, template):
    """Its doubled article included; later turns of plain text ask for the letter."""
    tokenizer = byte_tokenizer()
    tokenizer.inner.chat_template = template
    lm, article, letter = reader.replace(tokenizer=tokenizer), "The the correct answer is", "The letter of the correct answer is"
    apart, later = make(lm, folder, "choice_eng", "scdq").turns, make(lm, folder, "choice_eng", "multi_turn")
    end = "<bot>" if template else ""
    assert all(lm.decode(turn.fed).endswith(f"D. Di\n\n{article}{end}") for turn in apart)
    assert lm.decode(later.compressed).endswith(f"D. Di\n\n{article}{end}")
    assert lm.decode(later.turns[1].fed).endswith(f"D. Di\n\n{article if template else letter}{end}")


def test_five_turns_are_asked_where_the_first_row_has_more(reader, tmp_path):
    """As the benchmark's --max_turns; where the first row has five, a row of seven is asked them all."""
    turns = [{"input": f"{i}?", "answer": f"a{i}"} for i in range(7)]

    def asked(counts, **how):
        lines = [json.dumps({"context": "c", "multi_turns": turns[:count]}) for count in counts]
        (tmp_path / "scbench_kv.jsonl").write_text("\n".join(lines))
        task = replace(next(task for task in scbench.tasks(tmp_path) if task.task == "kv"), **how)
        made = task.examples(reader, 3000, len(counts), 0, haystack=(), mode="unseen")
        return {session.meta["row"]: (len(session.turns), session.references[-1]) for session in made}

    assert asked([6, 7, 2]) == {0: (5, "a4"), 1: (5, "a4"), 2: (2, "a1")}
    assert asked([5, 7]) == {0: (5, "a4"), 1: (7, "a6")}
    assert asked([6, 7], turns=None) == {0: (6, "a5"), 1: (7, "a6")}
    assert asked([6, 7], turns=1) == {0: (1, "a0"), 1: (1, "a0")}


def test_the_middle_of_a_long_prompt_is_left_out(reader, folder):
    whole, short = (make(reader, folder, "kv", "scdq", length) for length in (3000, 41))
    assert short.compressed == whole.compressed[:20] + whole.compressed[-20:]
    assert short.meta["dropped_tokens"] == len(whole.compressed) - 40


def session_of(talker, folder, mode, policy):
    session = make(talker, folder, "kv", mode, 200)
    session = replace(session, turns=tuple(replace(turn, new_tokens=4) for turn in session.turns))
    pre = kvjax.prefill(talker, session.compressed, needs=policy.needs)
    return session, kvjax.compress(pre, policy)


def test_apart_no_question_sees_another_and_every_row_has_its_own_answers(talker, folder):
    policies = [kvjax.methods.snapkv(budget=budget) for budget in (0.5, 0.9)]
    (session, small), (_, large) = (session_of(talker, folder, "scdq", policy) for policy in policies)
    both = answered(talker, kvjax.stack([small, large]), policies[0], session)
    backwards = answered(talker, kvjax.stack([small, large]), policies[0], replace(session, turns=session.turns[::-1]))
    assert [row["answers"] for row in both] == [row["answers"][::-1] for row in backwards]
    (alone,) = answered(talker, large, policies[1], replace(session, turns=session.turns[1:]))
    assert alone["answers"] == both[1]["answers"][1:] and both[0]["score"] == sum(both[0]["scores"]) / 2


@pytest.mark.parametrize("mode", ["multi_turn", "scdq"])
def test_reference_answers_are_fed_in_turn_and_not_apart(talker, folder, mode, monkeypatch):
    """Whatever the model said: what is fed is counted, because a toy model may say the same after either."""
    policy, fed, real = kvjax.methods.snapkv(budget=0.5), [], kvjax.extend
    session, cache = session_of(talker, folder, mode, policy)
    monkeypatch.setattr(kvjax, "extend", lambda *words, **how: (fed.append(words[2]), real(*words, **how))[1])
    answered(talker, kvjax.stack([cache, cache]), policy, session)
    first, second = session.turns
    told = [] if mode == "scdq" else talker.encode("b")
    assert fed == [[list(first.fed)] * 2, [[*told, *second.fed]] * 2]


@pytest.mark.slow
def test_in_turn_the_second_question_follows_the_first_answer(talker, folder):
    """With everything kept, the second answer is that of one prompt that holds the question and the reference answer before it."""
    full = kvjax.methods.full()
    session, cache = session_of(talker, folder, "multi_turn", full)
    (found,) = answered(talker, cache, full, session)
    whole = [*session.compressed, *session.turns[0].told, *session.turns[1].fed]
    pre = kvjax.compress(kvjax.prefill(talker, whole), full)
    out = kvjax.decode(talker, pre, full, max_new_tokens=4, stop=session.stop)
    wanted = [int(token) for token in out.tokens[0][: int(out.lengths[0])] if int(token) not in session.stop]
    assert found["answers"][1] == talker.decode([*session.turns[1].fed, *wanted])[len(talker.decode(session.turns[1].fed)) :]


CASES = {
    "kv": [(("b",), "abc", 1), (("b",), "B", 0), (("b",), "", 0)],
    "vt": [(("AA", "BB", "CC"), "aa and CC", 0.67), (("AA",), "", 0), (("AA", "BB"), "AA BB", 1)],
    "qa_eng": [(("Ann",), " miss ANNE ", 1), (("Ann",), "An", 0)],
    "many_shot": [(("(A)",), "it is (a).", 1), (("(A)",), "A", 0)],
    "qa_chn": [(("田立帆",), "田", 0.5), (("田立帆", "田"), "田", 1)],
    "choice_eng": [(("Ann", "B"), "B", 1), (("Ann", "B"), "the answer is: Ann", 1), (("Ann", "B"), "C", 0)],
    "mf": [(("9",), "9", 1), (("9",), "9.7 or 3", 1), (("9",), "x 8 9", 0), (("9.5",), "9.5", 1), (("9",), "-9", 1)],
    "passkey": [(("7",), "key 7, 8", 1), (("7",), "8 7", 0)],
    "summary": [(("a b",), "a b", 1), (("a b",), "a", 2 / 3), (("a b",), "", 0)],
    "repoqa": [
        ((CODE, OTHER), f"Here:\n```python\n{CODE}\n```", 1), ((CODE, OTHER), CODE, 1), ((CODE, OTHER), OTHER, 0),
        ((OTHER, CODE), f"```\n{CODE}\n```\n```\n{OTHER}\n```", 0),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", CASES)
def test_graders_are_the_benchmarks(kind):
    for references, answer, score in CASES[kind]:
        assert GRADES[kind](answer, references) == pytest.approx(score), (references, answer)
    assert GRADES["prefix_suffix"] is GRADES["kv"]


def test_functions_are_compared_by_their_words():
    assert function_similarity(CODE, CODE) == pytest.approx(1) and 0 < function_similarity(OTHER, CODE) < 0.8


def test_two_kinds_of_turns_are_also_told_apart(reader, folder):
    session = make(reader, folder, "summary_with_needles", "scdq", 100)
    assert [turn.new_tokens for turn in session.turns] == [800, 15]
    found = row_of(["a", "7."], session.turns)
    assert found["kinds"] == ["summary", "passkey"] and found["scores"] == pytest.approx([2 / 3, 1])
    assert (found["score"], found["score_summary"], found["score_passkey"]) == pytest.approx((5 / 6, 2 / 3, 1))


@pytest.mark.parametrize(
    ("name", "turn", "reason"),
    [
        ("kv", {"input": "x"}, "expected multi_turns as a list of objects with answer, input"),
        ("choice_eng", {"input": "x", "answer": "y", "options": ["a"]}, "expected the answer 'y' among options"),
        ("repoqa_and_kv", {"input": "x", "answer": "y", "task": "zork"}, "a turn is of scbench_repoqa or scbench_kv, got 'zork'"),
        ("mf", {"input": "Largest?", "answer": 1}, "expected an input such as 'The largest number is'"),
    ],
)
def test_other_layouts_are_refused(reader, folder, name, turn, reason):
    file = folder / f"scbench_{name}.jsonl"
    file.write_text(json.dumps({"id": 0, "repo": "r", "context": "c", "multi_turns": [turn]}) + "\n")
    with pytest.raises(ValueError, match=reason):
        make(reader, folder, name, "scdq")
