"""LongProc: prompts from the published template, and the figures of answers, from small files in the official layout.

Expected figures follow from longproc/*_evaluator.py of the benchmark, rule by rule; comments say which rule decides.
"""

import json
import shutil

import pytest

from experiments.tasks.answering import AnsweringInParts
from experiments.tasks.datasets import longproc
from experiments.tasks.datasets.longproc.countdown import demonstrations
from experiments.tasks.datasets.longproc.travel_planning import plan
from experiments.tasks.datasets.longproc.travel_search import demonstration

TRIP = {
    "id": "t", "num_cities": 3, "total_days": 6, "connected_cities": [["Rome", "Oslo"], ["Bonn", "Rome"], ["Oslo", "Rome"]],
    "constraints": [
        {"type": "duration", "city": "Oslo", "num_days": 2}, {"type": "fixed", "city": "Oslo", "start_day": 5, "end_day": 6},
        {"type": "duration", "city": "Rome", "num_days": 3}, {"type": "duration", "city": "Bonn", "num_days": 3},
    ],
    "disambig_question_text": "Plan {a} trip.", "estimated_output_tokens": 900,
    "ground_truth_cities": "Bonn**Rome**Oslo", "ground_truth_durations": "3**3**2",
}  # fmt: skip
TABLE = "name\tprice\nAn Apple\t1.5\nA Pear\t2"
ROUTE = "From A, take a bus to B.\nFrom B, take a train to C.\nFrom C, take a bus to D."
TRACE = "Ann's belief:\n- Step 0: (initial state) {Ann: hall}\n- Step 1: {Ann: the loft}\nFinal Answer: loft"
ROWS = {
    "html_to_tsv": {
        "html_path": "webpage/a.html", "task_topic": "fruit", "task_description": "(1) name", "gt": TABLE,
        "tsv_header": "name\tprice", "filtering_instruction": "",
    },
    "pseudo_to_code": {
        "pseudocode_lines": ["read a", "print a + 1"], "code_lines": ["int main(){}"],
        "testcases": [[["1"], ["2"]], [["4"], ["5"]]],
    },
    "path_traversal": {"context_nl": "A to B.", "question_repr": ["A", "D"], "answer_nl": ROUTE},
    "tom_tracking": {"story_components": "Agents", "story": "Step 0", "question": "Where?", "solution": TRACE},
    "countdown": {"nums": [40, 19, 23, 7], "target": 29},
    "travel_planning": TRIP,
}  # fmt: skip
TEMPLATES = {
    "html_to_tsv": "{html_str}|{task_topic}|{task_description}{filtering_instruction}|{tsv_header}|{{x}}",
    "pseudo_to_code": "Code: {pseudocode}",
    "path_traversal": "{city_context} From {src_city} to {dst_city}",
    "tom_tracking": "{story} {question}",
    "countdown": "{demonstration}|{nums}|{target}",
    "travel_planning": "{demonstration}|{problem}",
}


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setenv("KVJAX_RUN_CODE", "1")
    for kind in longproc.KINDS:
        home = tmp_path / kind.KIND
        home.mkdir()
        (home / "prompts.yaml").write_text("USER_PROMPT: |-\n  " + TEMPLATES[kind.KIND] + "\n")
        for size in kind.SIZES:
            (home / kind.FILE.format(size=size)).write_text(json.dumps([ROWS[kind.KIND]]))
    both = [TRIP, TRIP | {"estimated_output_tokens": 5000}, TRIP | {"estimated_output_tokens": 3000}]
    (tmp_path / "travel_planning" / "travel_planning_all.json").write_text(json.dumps(both))
    (tmp_path / "travel_planning" / "travel_planning_icl_examples.json").write_text(json.dumps([TRIP]))
    (tmp_path / "html_to_tsv" / "webpage").mkdir()
    (tmp_path / "html_to_tsv" / "webpage" / "a.html").write_text("<p>{fruit}</p>")
    return tmp_path


def task(folder, name):
    return next(found for found in longproc.tasks(folder) if found.task == name)


@pytest.mark.parametrize(
    ("name", "file"),
    [("html_to_tsv_2k", "html_to_tsv/webpage/a.html"), ("travel_planning_2k", "travel_planning/travel_planning_icl_examples.json")],
)
def test_the_digest_is_of_all_files_that_prompts_are_made_of(folder, name, file):
    before = task(folder, name)
    told = before.meta(before.rows[0])["data"]
    assert task(folder, name).meta(before.rows[0])["data"] == told
    (folder / file).write_text((folder / file).read_text() + " ")
    assert task(folder, name).meta(before.rows[0])["data"] != told


def test_all_tasks_fill_their_templates(reader, folder):
    found = {}
    for made in longproc.tasks(folder):
        (example,) = made.examples(reader, 20_000, 1, 0, haystack=(), mode="seen")
        found[made.task] = reader.decode(example.compressed)
        assert example.task == f"longproc/{made.task}/whole" and example.new_tokens in (1024, 3072, 9216)
        assert reader.decode(example.fed) == "\n" and "+" in example.meta["data"]
    assert len(found) == 16
    assert found["html_to_tsv_2k"] == "<p>{fruit}</p>|fruit|(1) name|name\tprice|{x}"
    assert found["pseudo_to_code_2k"] == "Code: read a\nprint a + 1" and found["path_traversal_8k"] == "A to B. From A to D"
    assert found["tom_tracking_0.5k"] == "Step 0 Where?"
    assert found["countdown_8k"] == demonstrations() + "|[40, 19, 23, 7]|29"
    assert demonstrations().count("# Example\nNumbers: [") == 2
    assert found["travel_planning_8k"] == f"# Example\nPlan {{a}} trip.\n\n{demonstration(TRIP)}|Plan {{a}} trip."
    assert [len(task(folder, f"travel_planning_{size}").rows) for size in ("2k", "8k")] == [1, 1]


def figures(folder, name, answer):
    made = task(folder, name)
    row = AnsweringInParts(made).graded(answer, made.references(made.rows[0]))
    return tuple(row[part] for part in ("score", *(part for part in row if part not in ("score", "answer"))))


@pytest.mark.parametrize(
    ("answer", "f1", "precision", "recall", "extracted"),
    [
        (f"```tsv\n{TABLE}\n```", 1, 1, 1, 1),
        (TABLE, 1, 1, 1, 1),  # without a fence all of it counts
        ("```tsv\nn\tp\na pear!\t2\nAPPLE\t15\n", 1, 1, 1, 1),  # order, case, articles and punctuation do not
        ("```tsv\nname\tprice\nApple\t1.5\nFig\t3\n```", 0.5, 0.5, 0.5, 1),
        ("name\tprice\nApple\t1.5\nFig\t3\nPlum\t4", 0.4, 1 / 3, 0.5, 1),
        ("name\tprice\nApple\nPear\t2", 0.5, 0.5, 0.5, 1),  # a short row is one of N/A
        ("name\tprice\nPear\t2\nThat is all.", 2 / 3, 1, 0.5, 1),  # a last short row goes
        ("name\nApple", 0, 0, 0, 0),  # other columns
        ("name\tprice", 0, 0, 0, 0),  # no rows
        ("name\tname\nApple\t1.5", 0, 0, 0, 0),  # one name twice
        ("", 0, 0, 0, 0),
    ],
)
def test_tables_are_compared_row_by_row(folder, answer, f1, precision, recall, extracted):
    assert figures(folder, "html_to_tsv_0.5k", answer) == pytest.approx((f1, precision, recall, extracted))


@pytest.mark.parametrize(
    ("route", "want"),
    [
        (ROUTE, (1, 1, 1)),
        (f"\n {ROUTE} \n", (1, 1, 1)),
        (ROUTE.replace("train", "ferry"), (0, 2 / 3, 1)),  # the first wrong line counts
        ("wrong", (0, 1 / 3, 1)),
        (ROUTE[:24], (0, 1 / 3, 1)),
        (ROUTE + "\nFrom D, take a bus to E.", (0, 1, 1)),  # more lines than asked for
    ],
)
def test_routes_count_up_to_the_first_wrong_line(folder, route, want):
    assert figures(folder, "path_traversal_0.5k", f"So: <Route>{route}</Route>") == pytest.approx(want)
    assert figures(folder, "path_traversal_0.5k", route) == (0, 0, 0)


@pytest.mark.parametrize(
    ("answer", "want"),
    [
        (TRACE, (1, 1, 1)),
        ("- STEP 0: initial state Ann hall\n- step 1 is: Ann, loft", (1, 1, 1)),
        ("- Step 0: (initial state) {Ann: hall}", (0, 0.5, 1)),  # one line of two
        ("- Step 0: (initial state) {Ann: hall}\n- Step 1: {Ann: attic}", (0, 0.5, 1)),
        ("- Step 1: {Ann: loft}", (0, 0, 1)),
        (TRACE + "\n- Step 2: x", (0, 1, 1)),
        (TRACE.replace("- Step 1", "  - Step 1"), (0, 0.5, 1)),  # an indented line does not count
        ("", (0, 0, 1)),
    ],
)
def test_beliefs_are_compared_line_by_line(folder, answer, want):
    assert figures(folder, "tom_tracking_0.5k", answer) == pytest.approx(want)


def test_countdown_takes_any_solution_and_else_the_search(folder):
    right = demonstrations().split("Target: 29\n\n")[1].split("\n\n# Example")[0]
    other = "<Solution>\n19 + 40 = 59\n59 - 23 = 36\n36 - 7 = 29\n</Solution>"
    assert figures(folder, "countdown_2k", right) == figures(folder, "countdown_2k", other) == (1, 1, 1)
    unsolved = right.split("<Solution>")[0].split("\n\nNow")[0]
    assert figures(folder, "countdown_2k", unsolved) == pytest.approx((0, 10 / 11, 0))
    assert figures(folder, "countdown_2k", "<Solution>40 + 19 = 59</Solution>") == (0, 0, 1)
    assert figures(folder, "countdown_2k", "") == (0, 0, 0)


PLAN = (
    "**Day 1-3:** Arriving in Bonn and visit Bonn for 3 days.\n**Day 3:** Fly from Bonn to Rome.\n"
    "**Day 3-5:** Visit Rome for 3 days.\n**Day 5:** Fly from Rome to Oslo.\n**Day 5-6:** Visit Oslo for 2 days."
)


def test_travel_plans_are_found_by_the_benchmarks_search():
    lines = demonstration(TRIP).split("\n")
    assert lines[2] == "* City: Oslo, Duration: 2 days, Fixed Schedule: Day 5 - 6."
    assert "   |- Check for direct flight from Rome to Bonn." in lines
    assert demonstration(TRIP).endswith(f"<Plan>\n{PLAN}\n</Plan>")
    tried = [line.strip(" |-") for line in lines if "Try arranging" in line]
    assert [line.split(" from ")[0].split()[-1] for line in tried] == ["Rome", "Bonn", "Bonn", "Rome", "Oslo"]
    with pytest.raises(ValueError, match="no plan satisfies"):
        demonstration(TRIP | {"connected_cities": []})


def test_travel_plans_are_read_by_their_flights(folder):
    assert plan(PLAN) == [("Bonn", 3), ("Rome", 3), ("Oslo", 2)] and plan("nothing") == []
    assert figures(folder, "travel_planning_2k", f"<Plan>\n{PLAN}\n</Plan>") == (1, 1, 1)
    wrong = PLAN.replace("Day 5:** Fly", "Day 4:** Fly")
    lines = demonstration(TRIP).replace("Output the plan in the required format:", "").split("\n")
    count = len([line for line in lines if line.strip()])
    assert figures(folder, "travel_planning_2k", f"<Plan>{wrong}</Plan>") == (0, 0, 1)
    unfinished = demonstration(TRIP).replace(PLAN, wrong)
    at = next(i for i, line in enumerate(line for line in lines if line.strip()) if "Day 5:** Fly" in line)
    assert figures(folder, "travel_planning_2k", unfinished) == pytest.approx((0, at / count, 1))
    assert figures(folder, "travel_planning_2k", "") == (0, 0, 0)


@pytest.mark.skipif(shutil.which("g++") is None, reason="no g++")
def test_programs_are_compiled_and_run(folder):
    main = "int main(){{int a; cin >> a; cout << {} << endl;}}".format
    assert figures(folder, "pseudo_to_code_2k", f"```c++\n{main('a + 1')}\n```") == (1, 1)
    assert figures(folder, "pseudo_to_code_2k", f"```cpp\n{main('2')}\n```") == (0, 1)
    assert figures(folder, "pseudo_to_code_2k", "```cpp\nint main({\n```") == (0, 1)
    assert figures(folder, "pseudo_to_code_2k", main("a + 1")) == (0, 0)


def test_what_is_missing_is_named(reader, folder, monkeypatch):
    ask = lambda name, length=20_000: next(task(folder, name).examples(reader, length, 1, 0, haystack=(), mode="seen"))  # noqa: E731
    with pytest.raises(ValueError, match="this prompt has 24 tokens and is never cut, --lengths says 23"):
        ask("pseudo_to_code_2k", 23)
    monkeypatch.delenv("KVJAX_RUN_CODE")
    with pytest.raises(ValueError, match="runs programs that the model writes: set KVJAX_RUN_CODE=1"):
        ask("pseudo_to_code_2k")
    (folder / "html_to_tsv" / "webpage" / "a.html").unlink()
    with pytest.raises(FileNotFoundError, match="no file .*webpage/a.html: put the benchmark's"):
        ask("html_to_tsv_2k")
    (folder / "path_traversal" / "prompts.yaml").unlink()
    with pytest.raises(FileNotFoundError, match="put the benchmark's prompts.yaml there"):
        ask("path_traversal_2k")
    (folder / "tom_tracking" / "prompts.yaml").write_text("USER_PROMPT: '{story} {zork}'")
    with pytest.raises(ValueError, match="prompts.yaml asks for 'zork'"):
        ask("tom_tracking_2k")
    (folder / "tom_tracking" / "prompts.yaml").write_text("[1")
    with pytest.raises(ValueError, match="prompts.yaml: not YAML"):
        ask("tom_tracking_2k")
    (folder / "countdown" / "countdown_2k.json").write_text(json.dumps([{"nums": [1, 1, 1, 1], "target": 1999}]))
    with pytest.raises(ValueError, match="expected four whole numbers that reach their target"):
        ask("countdown_2k")
