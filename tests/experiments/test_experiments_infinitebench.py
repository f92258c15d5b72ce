"""InfiniteBench: prompts and graders of all twelve tasks, from small files in the official layout.

Expected scores follow from src/compute_scores.py of the benchmark, rule by rule; comments say which rule decides.
"""

import json

import pytest

from experiments.tasks.answering import Answering
from experiments.tasks.datasets import infinitebench
from experiments.tasks.datasets.infinitebench import GRADES, KVPRESS_GRADES, InfiniteBench
from experiments.tasks.datasets.source import Local
from experiments.tasks.protocol import KVPRESS, OFFICIAL

ROWS = {
    "passkey": {"context": "Grass. The pass key is 71432. Sky.", "input": "What is the pass key?", "answer": "71432"},
    "number_string": {"context": "The sequence of digits is 22.", "input": "What is the sequence?", "answer": ["2200012222"]},
    "kv_retrieval": {
        "context": '{"a": "b"}',
        "input": 'Key: "a"\nThe value associated with the specified key is: ',
        "answer": "b",
    },
    "longdialogue_qa_eng": {"context": "ACE: I am $$MASK$$.", "input": "Which character is $$MASK$$ ?", "answer": ["ACE", "Bo"]},
    "longbook_sum_eng": {"context": "A book.", "input": "", "answer": ["It is a book."]},
    "longbook_choice_eng": {
        "context": "A book.",
        "input": "Who?",
        "answer": ["Ann"],
        "options": ["Bob", "Ann", "Cy", "Di"],
    },
    "longbook_qa_eng": {"context": "A {book}.", "input": "Who?", "answer": ["Ann", "Miss Ann"]},
    "longbook_qa_chn": {"context": "书。", "input": "谁？", "answer": ["田立帆"]},
    "math_find": {
        "context": "[1, 88, 3]",
        "input": "The largest number of the list is:",
        "answer": 88,
    },
    "math_calc": {"context": "1 + 2 - 4", "input": "", "answer": [[1, 3, -1]]},
    "code_run": {"context": "def func_3(x): ...", "input": "Please give me func_3(-4).", "answer": -5},
    "code_debug": {
        "context": "def f(): ...",
        "input": "Which?",
        "answer": ["b.g", "B"],
        "options": ["a.f", "b.g", "c.h", "d.i"],
    },
}


@pytest.fixture
def folder(tmp_path):
    for name, row in ROWS.items():
        (tmp_path / f"{name}.jsonl").write_text(json.dumps({"id": 0, "options": []} | row, ensure_ascii=False) + "\n")
    return tmp_path


def prompt(reader, folder, name, protocol, mode):
    task = InfiniteBench(name, Local(folder / f"{name}.jsonl"), protocol)
    return next(task.examples(reader, 2000, 1, 0, haystack=(), mode=mode))


def test_all_twelve_tasks_make_prompts_under_both_protocols(reader, folder):
    assert len(infinitebench.tasks(folder)) == len(ROWS) == 12
    for protocol in (OFFICIAL, KVPRESS):
        for task in infinitebench.tasks(folder, protocol):
            (made,) = task.examples(reader, 2000, 1, 0, haystack=(), mode=task.MODES[0])
            assert made.task == task.NAME == f"infinitebench/{task.task}/{protocol.name}" == Answering(task).NAME
            assert made.meta == {"data": task.data.digest, "protocol": protocol.name, "row": 0, "dropped_tokens": 0}
            assert made.references and made.stop == reader.stop_ids


def test_official_prompts_are_the_benchmarks_for_open_models(reader, folder):
    words = lambda name: reader.decode(prompt(reader, folder, name, OFFICIAL, "seen").compressed)  # noqa: E731
    assert words("passkey").endswith("Sky.\n\nWhat is the pass key?\n\nThe pass key is")
    assert words("longbook_qa_eng").endswith("A {book}.\n\nQuestion: Who?\nAnswer:")
    assert words("longbook_choice_eng").endswith("Who?\nA. Bob\nB. Ann\nC. Cy\nD. Di\n\nThe letter of the correct answer is")
    assert words("code_run") == (
        "There is a function called func_3 in the following Python code.\n\ndef func_3(x): ...\n\n"
        "Please compute the exact value of func_3(-4). The value of func_3(-4) is"
    )
    assert words("math_find") == (
        "What is the largest number in the following list?\n\n[1, 88, 3]\n\nThe largest number of the list is:"
    )


def test_kvpress_moves_the_answers_opening_behind_the_question(reader, folder):
    made = prompt(reader, folder, "kv_retrieval", KVPRESS, "unseen")
    assert reader.decode(made.context).endswith('{"a": "b"}\n\n') and made.new_tokens == 50 + 20
    assert reader.decode(made.fed) == 'Key: "a"\n \nThe value associated with the specified key is'
    made = prompt(reader, folder, "code_debug", KVPRESS, "unseen")
    assert reader.decode(made.question).startswith("Which?\n\nOptions:\nA. a.f\n")


def test_references_are_text(folder):
    found = {task.task: task.references(task.rows[0]) for task in infinitebench.tasks(folder)}
    assert found["math_find"] == ("88",) and found["code_run"] == ("-5",) and found["math_calc"] == ("[1, 3, -1]",)
    assert found["longbook_choice_eng"] == ("Ann", "B") and found["code_debug"] == ("b.g", "B")
    assert found["longbook_qa_eng"] == ("Ann", "Miss Ann") and found["passkey"] == ("71432",)


CASES = {
    "passkey": [  # the first run of digits, as text
        ("71432", 1), (" 71432.", 1), ("key 71432 71433", 1), ("7 71432", 0), ("", 0), ("none", 0), ("714320", 0),
        ("071432", 0), ("71,432", 0), ("密码是71432。", 1), ("７１４３２", 0),
    ],
    "kv_retrieval": [  # a word between spaces and marks
        ("b", 1), ('"b".', 1), ("ab", 0), ("", 0), ("a: b", 1), ("{b}", 1), ("(b)", 0), ("B", 0), ("x\nb", 1), ("b-c", 0),
    ],
    "longdialogue_qa_eng": [  # a word in capitals is the first name
        ("ACE", 1), ("ace.", 1), ("Ace Rothstein", 1), ("Bo", 0), ("", 0), ("PEACE", 0), ("(ACE)", 0), ("It's ACE!", 1),
        ("ACÉ", 0), ("a c e", 0),
    ],
    "longbook_choice_eng": [
        ("B", 1), ("A", 0), ("", 0), ("B. Ann", 1), ("Bob", 1),  # opens with a letter from A to D
        ("Ann", 0),  # so does this: A
        ("I think B", 1), ("i say D then B", 0),  # first word of such letters
        ("the answer is: B", 1), ("the answer is Bob", 1), ("answer: C", 0), ("the answer is:", 0),  # after an opening
        ("“B”", 0), ("选B", 0), ("the option is BC", 1),
    ],
    "longbook_qa_eng": [  # best F1 over "Ann" and "Miss Ann"
        ("Ann", 1), ("Miss Ann", 1), ("miss ann!", 1), ("", 0), ("Bob", 0), ("The Ann", 1), ("Ann Bob", 2 / 3),
        ("Miss Ann Bob", 0.8), ("Miss", 2 / 3), ("Ànn", 0),
    ],
    "longbook_qa_chn": [  # F1 of characters with "田立帆"
        ("田立帆", 1), ("田立帆。", 1), ("", 0), ("田", 0.5), ("帆立田", 1), ("田立帆和王", 0.75), ("王", 0), (" 田 立 帆 ", 1),
        ("田田", 0.4), ("tian", 0),
    ],
    "math_find": [  # the first number is the integer 88
        ("88", 1), ("It is 88.", 1), ("88.0", 0), ("8 88", 0), ("", 0), ("-88", 1), ("eighty", 0), ("088", 1), ("88, 1", 1),
        ("最大的是88", 1), ("1e88", 0),
    ],
    "math_calc": [  # leading runs of digits equal 1, 3, -1: the sign is no part of a run, so the third never is
        ("[1, 3, -1]", 2 / 3), ("1 3", 2 / 3), ("1", 1 / 3), ("", 0), ("3 1", 0), ("1 2 3", 1 / 3), ("01 03", 2 / 3),
        ("1.3", 2 / 3), ("一 1", 1 / 3), ("9" * 5000, 0),
    ],
    "code_run": [  # the last word is the integer -5
        ("-5", 1), ("The value is -5.", 1), ("5", 0), ("", 0), ("-5 or -6", 0), ("`-5`", 1), ("returns: -5", 1), ("-5.0", 0),
        ("minus five", 0), ("- 5", 0), ("返回 -5", 1),
    ],
    "code_debug": [
        ("B.", 1), ("B: b.g", 1), ("B", 0), ("", 0), ("b.g", 0),  # opens with the letter and a mark
        ("The correct option is: B", 1), ("The answer is: b.g", 1), ("answer is: C", 0),  # right after an opening
        ("The correct option is:", 0), ("The correct option is:B", 0),  # one character is passed over
        ("It is: Option B", 1), ("错误是 B", 0),
    ],
    "longbook_sum_eng": [  # F of "it is a book"; lines of letters and digits
        ("It is a book.", 1), ("", 0), ("a book it is", 0.5), ("it", 2 * 0.25 / 1.25), ("IT IS A BOOK", 1), ("it is\na book", 1),
        ("it is a book it is a book", 2 * 0.5 / 1.5), ("书", 0), ("nothing", 0), ("is book", 2 * 0.5 / 1.5),
    ],
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_graders_follow_compute_scores(folder, name):
    task = InfiniteBench(name, Local(folder / f"{name}.jsonl"))
    references = task.references(task.rows[0])
    found = [(answer, pytest.approx(task.grade(answer, references))) for answer, _ in CASES[name]]
    assert CASES[name] == found and len(found) >= 10


def test_a_float_is_found_with_its_decimals():
    assert [GRADES["math_find"](answer, ("8.5",)) for answer in ("8.5", "it is 8.50", "8", "85")] == [1, 1, 0, 0]


def test_kvpress_takes_names_and_letters_anywhere():
    names, choice, bug = (KVPRESS_GRADES[x] for x in ("longdialogue_qa_eng", "longbook_choice_eng", "code_debug"))
    assert [names(x, ("ACE", "Ace Rothstein")) for x in ("peace", "ace rothstein", "Bob", "")] == [1, 1, 0, 0]
    assert [choice(x, ("Ann", "B")) for x in ("A or B", "A", "it is B", "I say A then C", "Ann", "")] == [1, 0, 1, 0, 0, 0]
    assert [bug(x, ("b.g", "B")) for x in ("B", "b.g", "maybe A, no, B", "I say C", "")] == [1, 1, 1, 0, 0]


def test_a_choice_needs_its_options(folder, reader):
    file = folder / "code_debug.jsonl"
    file.write_text(json.dumps({"context": "", "input": "", "answer": ["f"], "options": ["a", "b", "c", "d"]}) + "\n")
    with pytest.raises(ValueError, match="four options with the answer 'f' among them"):
        prompt(reader, folder, "code_debug", OFFICIAL, "seen")
    file.write_text(json.dumps({"context": "", "input": "", "answer": ["f"]}) + "\n")
    with pytest.raises(ValueError, match="line 1: the row has no field 'options'"):
        prompt(reader, folder, "code_debug", OFFICIAL, "seen")
    with pytest.raises(ValueError, match="no task 'code'"):
        InfiniteBench("code", Local(file))
