"""NeedleBench: where needles go, prompts of all tasks in both languages, and the graders, from small official-looking files."""

import json
import random

import pytest

from experiments.tasks.datasets import needlebench
from experiments.tasks.datasets.needlebench.chains import boxed
from experiments.tasks.datasets.needlebench.facts import distance, likeness
from experiments.tasks.datasets.needlebench.insert import inserted, starts_at, starts_from

LINE = "All work and no play makes Jack a dull boy, he said once more. "
ZH = "问题{0}是什么？请按照'答案{0}是______。'的格式回答。"
EN = "What is thing {0}? Please answer in the format of 'Thing {0} is ______.'"


@pytest.fixture
def folder(tmp_path):
    for name, line in (("PaulGrahamEssays.jsonl", LINE), ("zh_finance.jsonl", "今天的市场平静。")):
        (tmp_path / name).write_text("".join(json.dumps({"text": f"{i} {line * 9}"}) + "\n" for i in range(20)))
    needles = [
        {"language": language, "needle": form.format(i), "retrieval_question": ask.format(i), "arg1": f"p{i}", "arg2": f"v{i}v"}
        for i in range(14)
        for language, form, ask in (("English", "Thing {0} is v{0}v.", EN), ("Chinese", "答案{0}是v{0}v。", ZH))
    ]
    (tmp_path / "needles.jsonl").write_text("".join(json.dumps(row) + "\n" for row in needles))
    names = {"English": ",".join(f"Ann {i}" for i in range(600)), "Chinese": ",".join(f"安{i}" for i in range(600))}
    (tmp_path / "names.json").write_text(json.dumps(names))
    return tmp_path


def make(lm, folder, kind, index=0, length=2200, mode="unseen", seed=0):
    task = next(task for task in needlebench.tasks(folder) if kind == f"{task.KIND}_{task.language}")
    return next(task.examples(lm, length, index + 1, seed, haystack=(), mode=mode, start=index))


def test_needles_go_where_the_benchmark_puts_them():
    assert starts_from(1000, 40, [20, 25, 30]) == [400, 540, 690]
    assert starts_from(1000, 100, [20, 25, 30]) == [1000, 1040, 1090]
    assert starts_at(100, [0, 50, 100], [5, 7, 9]) == [0, 55, 112]
    assert inserted("abcd", ["X", "YY"], [1, 3]) == list("aXbYYcd")


def test_all_tasks_make_prompts_in_both_languages(reader, folder):
    made = needlebench.tasks(folder)
    assert len(made) == 2 * (2 + 4 + 9)
    for task in made:
        (example,) = task.examples(reader, 39_000 if task.KIND.startswith("atc") else 2200, 1, 0, haystack=(), mode="unseen")
        assert example.task == f"needlebench/{task.KIND}_{task.language}/split" and example.references and example.question


def test_a_fact_stands_at_its_depth(reader, folder):
    for index, depth in ((0, 0), (5, 0.5), (10, 1)):
        example = make(reader, folder, "single_en", index)
        text = reader.decode(example.context)
        document = text.split("<Document>\n")[1].removesuffix("\n</Document>")
        needle = f"\n{example.references[1]}\n"
        assert example.meta["depth"] == depth and document.index(needle) == int((2200 - 500 - len(needle)) * depth)
        assert len(document) == 2200 - 500
    assert text.startswith("This is a test of long-text capability. You need to first read the long document below, and then ")
    fact = random.Random(0).choice(range(14))
    assert reader.decode(example.fed) == (
        f"\n\nBased on the information in the document, now please answer: {EN.format(fact)}\n\n"
    )
    assert example.references == (f"v{fact}v", f"Thing {fact} is v{fact}v.")
    assert make(reader, folder, "single_en", 11).context != make(reader, folder, "single_en", 0).context  # the next repeat


def test_parallel_facts_are_all_asked_for(reader, folder):
    example = make(reader, folder, "parallel_en")
    numbers = [reference.strip("v") for reference in example.references]
    asked = reader.decode(example.question)
    assert len(set(numbers)) == 11 and all(f"\nThing {n} is v{n}v.\n" in reader.decode(example.context) for n in numbers)
    assert f"What is thing {numbers[0]}?、What is thing {numbers[1]}?、" in asked
    assert f"Please answer in the format of 'Thing {numbers[0]} is ______、Thing {numbers[1]} is ______、" in asked
    zh = reader.decode(make(reader, folder, "parallel_zh", length=3000).question)
    assert "？、问题" in zh and "？请按照'答案" in zh and zh.endswith("'的格式回答。\n")


def test_a_chain_has_one_eldest(reader, folder):
    example = make(reader, folder, "multi_3_en", 3, length=2400)
    family = next(t for t in needlebench.tasks(folder) if t.KIND == "multi_3" and t.language == "en").family(random.Random(0))
    text = reader.decode(example.context)
    assert all(f"\n{relation}\n" in text for relation in family.relations) and len(family.relations) == 3
    assert example.references == (family.names[0],)
    assert f"who is the eldest relative that '{family.names[-1]}' can trace back to" in reader.decode(example.question)
    assert "\\boxed{(your answer here)}" in reader.decode(example.question)


def test_the_trace_challenge_asks_four_types_in_turn(reader, folder):
    made = [make(reader, folder, "atc_4_en", index, length=4000) for index in range(4)]
    assert [example.meta["type"] for example in made] == ["eldest", "ancestor", "descendant", "distance"]
    task = next(task for task in needlebench.tasks(folder) if task.KIND == "atc_4" and task.language == "en")
    for kind, example in enumerate(made):
        family = task.family(random.Random(1 + 10_000 * kind))
        right = (family.names[0], family.names[0], family.names[-1], str(family.generations))[kind]
        assert example.references == (right,) and "".join(family.relations) in reader.decode(example.context)
        assert 4 <= family.generations <= 8
    with pytest.raises(ValueError, match="length 100 is too short for needlebench/atc_4_en/split: this prompt has"):
        make(reader, folder, "atc_4_en", length=100)


@pytest.mark.parametrize(
    ("answer", "found"),
    [
        ("So \\boxed{Ann 1}.", "Ann 1"), ("\\boxed{Bo} \\boxed{\\text{Ann 1}}", "Ann 1"), ("\\boxed{{Ann~1}}", "Ann 1"),
        ('\\boxed{"Ann  1"}', "Ann 1"), ("Ann 1", "None"), ("\\boxed{}", "None"), ("", "None"),
    ],
)  # fmt: skip
def test_the_box_is_cleaned(folder, answer, found):
    assert boxed(answer) == found
    task = next(task for task in needlebench.tasks(folder) if task.KIND == "multi_2")
    assert task.grade(answer, ("Ann 1",)) == (found == "Ann 1")


def test_facts_are_graded_by_keywords(folder):
    single, parallel = needlebench.tasks(folder)[:2]
    assert distance("thehiddenkeyisabc", "thekeyisabd") == 7 and likeness("", "") == 1
    reference = ("abc", "the hidden key is abc")
    assert single.grade("the key is abd", reference) == 0
    assert single.also("the key is abd", reference)["v1_score"] == pytest.approx(0.11764706)
    assert single.grade("It is abc.", reference) == 1 == single.also("It is abc.", reference)["v1_score"]
    assert parallel.grade("a b", ("a", "b", "c", "d")) == 0.5 and parallel.also("a", ("a",)) == {}


def test_bad_files_and_lengths_are_refused(reader, folder):
    with pytest.raises(ValueError, match="length 400 is too short for needlebench/single_en/split"):
        make(reader, folder, "single_en", length=400)
    with pytest.raises(ValueError, match="length 20000 is too long .* has [0-9]+ tokens"):
        make(reader, folder, "single_en", length=20_000)
    (folder / "names.json").write_text('{"English": "Ann,Bo"}')
    with pytest.raises(ValueError, match="names.json has 2 names, 3 are needed"):
        make(reader, folder, "multi_2_en")
    with pytest.raises(ValueError, match="expected an object with 'Chinese': names and commas"):
        make(reader, folder, "multi_2_zh")
    row = {"language": "English", "needle": "n", "retrieval_question": "q", "arg1": 1, "arg2": 2}
    (folder / "needles.jsonl").write_text(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match="needles.jsonl has no needle in Chinese"):
        make(reader, folder, "single_zh")
    with pytest.raises(ValueError, match="has 1 facts with arguments of their own, 11 needed"):
        make(reader, folder, "parallel_en")
    (folder / "PaulGrahamEssays.jsonl").unlink()
    with pytest.raises(FileNotFoundError, match="no file .*PaulGrahamEssays.jsonl"):
        make(reader, folder, "single_en")
