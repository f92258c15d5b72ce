"""Names on the command line: every benchmark's tasks under both protocols, and errors that say what there is."""

import pytest

from experiments.commands.tasks import TASKS, parse_tasks


def test_every_benchmark_has_its_tasks():
    counts = {name: sum(task.startswith(f"{name}/") and task.endswith("/official") for task in TASKS) for name in (
        "longbench", "longbench_e", "longbench_v2", "infinitebench")}
    assert counts["longbench_v2"] >= 1
    assert (counts["longbench"], counts["longbench_e"], counts["infinitebench"]) == (21, 13, 12)
    assert sum(task.endswith("/kvpress") for task in TASKS) > 0
    own = {name: sum(task.startswith(f"{name}/") for task in TASKS) for name in (
        "longmemeval", "longproc", "scbench", "needlebench", "aime", "zeroscrolls")}
    assert tuple(own.values()) == (6, 16, 24, 30, 2, 10)
    ruler = {"niah_single_1", "niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multikey_2", "niah_multikey_3",
             "niah_multivalue", "niah_multiquery", "vt", "cwe", "fwe", "qa_1", "qa_2"}
    assert ruler | {"needle", "niah", "niah_multi", "keyvalue", "gsm8k", "math", "ppl", "conversation", "countdown", "counting",
                    "counting_given", "intents", "paraphrase", "paraphrase_literal"} <= set(TASKS)


def test_names_become_pairs():
    assert parse_tasks("needle, ppl,needle", "both") == (
        (TASKS["needle"], "unseen"), (TASKS["needle"], "seen"), (TASKS["ppl"], "-"))
    assert parse_tasks("longbench/qasper/official", "seen") == ((TASKS["longbench/qasper/official"], "seen"),)


def test_what_cannot_be_asked_is_refused():
    for names, question, reason in (
        ("zork", "seen", "unknown task"), (" , ", "seen", "is empty"), ("needle", "maybe", "none of unseen, seen, both"),
        ("longbench/qasper/official", "unseen", "--question says unseen"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=reason):
            parse_tasks(names, question)
