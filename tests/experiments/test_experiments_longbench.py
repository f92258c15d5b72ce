"""LongBench and LongBench-E: prompts, graders and files of rows, from small files in the official layout."""

import json
import sys
import zipfile
from hashlib import sha256

import pytest

import models
from experiments.tasks.answering import Answering
from experiments.tasks.datasets import longbench, longbench_e
from experiments.tasks.datasets.longbench import METRICS, LongBench
from experiments.tasks.datasets.longbench_e import LongBenchE, bucket
from experiments.tasks.datasets.rows import load
from experiments.tasks.datasets.source import Hub, Local, LocalOrHub, Parts
from experiments.tasks.datasets.task import templates
from experiments.tasks.protocol import KVPRESS, OFFICIAL
from models import llama
from tests.conftest import toy_config

ROW = {"input": "Who?", "context": "Ann {did} it.", "answers": ["Ann"], "length": 3999, "all_classes": None}
CLASSES = ["Date", "Food", "Food web"]


@pytest.fixture(scope="module")
def reader(talker):
    """The toy model with room for the longest prompt; nothing here runs it."""
    config = llama.config(toy_config(vocab_size=257, num_hidden_layers=1, max_position_embeddings=4096))
    return models.random(config, seed=1).replace(tokenizer=talker.tokenizer)


def write(folder, name, **changes):
    file = folder / f"{name}.jsonl"
    file.write_text(json.dumps(ROW | changes, ensure_ascii=False) + "\n", encoding="utf-8")
    return Local(file)


def graded(folder, name, answer, references, protocol=OFFICIAL):
    return LongBench(name, write(folder, name, all_classes=CLASSES), protocol).grade(answer, references)


def asked(folder, name, protocol=OFFICIAL, **changes):
    task = LongBench(name, write(folder, name, **changes), protocol)
    return task.rules.ask(task.rows[0])


def test_there_are_21_tasks_and_13_of_longbench_e(tmp_path):
    assert [len(module.tasks(tmp_path)) for module in (longbench, longbench_e)] == [21, 13]
    names = [task.NAME for task in (*longbench.tasks(tmp_path, KVPRESS), *longbench_e.tasks(tmp_path))]
    assert len(set(names)) == 34 and names[0] == "longbench/narrativeqa/kvpress" and names[-1] == "longbench_e/repobench-p/official"
    assert set(METRICS) == set(templates("longbench"))


@pytest.mark.parametrize("protocol", [OFFICIAL, KVPRESS])
def test_every_task_makes_a_prompt_that_holds_the_row(reader, tmp_path, protocol):
    for name in METRICS:
        task = LongBench(name, write(tmp_path, name), protocol)
        (made,) = task.examples(reader, 3000, 1, 0, haystack=(), mode=protocol.MODES[0])
        assert "Ann {did} it." in reader.decode(made.compressed) and made.meta["dropped_tokens"] == 0, name
        assert Answering(task).NAME == made.task and made.references == ("Ann",) and made.meta["words"] == 3999


def test_lengths_of_answers_are_the_benchmarks(tmp_path):
    """config/dataset2maxlen.json; kvpress generates 20 tokens more."""
    wanted = {"narrativeqa": 128, "hotpotqa": 32, "gov_report": 512, "vcsum": 512, "trec": 64, "samsum": 128, "lcc": 64}
    for name, tokens in wanted.items():
        assert LongBench(name, write(tmp_path, name)).rules.new_tokens == tokens
        assert LongBench(name, write(tmp_path, name), KVPRESS).rules.new_tokens == tokens + 20


def test_worked_examples_and_code_go_without_the_chat_template(tmp_path):
    """pred.py lists them."""
    plain = {name for name in METRICS if not asked(tmp_path, name).chat}
    assert plain == {"trec", "triviaqa", "samsum", "lsht", "lcc", "repobench-p"}


def test_official_prompts_are_the_benchmarks(tmp_path):
    """config/dataset2prompt.json, a space before a line break and a missing one between words included."""
    assert asked(tmp_path, "lcc").context == "Please complete the code given below. \nAnn {did} it.Next line of code:\n"
    assert asked(tmp_path, "trec").context.endswith("of questions.\n\nAnn {did} it.\nWho?")
    assert "asconcisely" in asked(tmp_path, "narrativeqa").context
    assert asked(tmp_path, "multifieldqa_zh").context.endswith("不要输出任何其他字词。\n\n问题：Who?\n回答：")


def test_kvpress_splits_the_same_prompt(tmp_path):
    """But for line breaks its three parts are the benchmark's prompt, save the openings of trec, triviaqa and samsum."""
    for name in METRICS:
        words = "" if name == "lcc" else "Who?"  # lcc has no inputs
        parts, whole = (asked(tmp_path, name, protocol, input=words) for protocol in (KVPRESS, OFFICIAL))
        squeezed = ("".join((part.context, part.question, part.prefix)).replace("\n", "") for part in (parts, whole))
        if name not in longbench.OPENED:
            assert len(set(squeezed)) == 1, name
    opened = asked(tmp_path, "trec", KVPRESS, input="Question: Who?\nType:")
    assert (opened.question, opened.prefix) == ("Question: Who?\n", "Type:")


@pytest.mark.parametrize(
    ("name", "answer", "references", "score"),
    [  # the metric of each task (eval.py), its best over the references; the metrics have their own tests
        ("hotpotqa", "", ("Ann",), 0),
        ("hotpotqa", "Ann", ("Bob", "Ann"), 1),
        ("hotpotqa", "Ann\nis it", ("Ann",), 0.5),  # all lines count: 1 of 3 words
        ("narrativeqa", "the naïve Ann", ("naïve Ann", "Ann"), 1),
        ("triviaqa", "\n\nAnn\nis it", ("Ann",), 1),  # the first line alone
        ("triviaqa", " \nAnn", ("Ann",), 0),  # a line of a space is a line
        ("trec", "Food\nDate", ("Food",), 1),
        ("trec", "Food, Date", ("Food",), 0.5),
        ("lsht", "\nFood web", ("Food web",), 1),
        ("samsum", "w1 w2\nw3", ("w1 w2",), 1 / (1 + 0.5e-8)),  # 2PR / (P + R + 1e-8)
        ("gov_report", "w1 w2\nw3", ("w1 w2",), 2 * (2 / 3) / (5 / 3)),
        ("passage_count", "12 or 13", ("12",), 0.5),
        ("passage_retrieval_en", "Paragraph 3", ("Paragraph 3",), 1),
        ("passage_retrieval_zh", "段落3，段落4", ("段落3",), 0.5),
        ("lcc", "\n    x = 1\n    y = 2", ("    x = 1",), 1),
        ("repobench-p", "# a\n// b\nx", ("x",), 1),
        ("hotpotqa", "Ann", (), 0),
    ],
)
def test_answers_are_graded_as_by_eval(tmp_path, name, answer, references, score):
    assert graded(tmp_path, name, answer, references) == pytest.approx(score, abs=1e-7)


@pytest.mark.parametrize(
    ("name", "answer", "references", "score"),
    [  # over jieba's words: 研究 生命 起源; 研究 生命 的 起源
        ("multifieldqa_zh", "研究生命起源", ("上海", "研究生命的起源"), 6 / 7),
        ("dureader", "研究生命起源", ("研究生命的起源", "上海"), 6 / 7),
        ("vcsum", "", ("研究",), 0),
    ],
)
def test_chinese_answers_are_graded_by_words(tmp_path, name, answer, references, score):
    pytest.importorskip("jieba")
    assert graded(tmp_path, name, answer, references) == pytest.approx(score, abs=1e-7)


def test_kvpress_strips_the_answer_first(tmp_path):
    """So an indented line of code loses its indentation, but not in LongBench-E (calculate_metrics_e)."""
    official, kvpress = (graded(tmp_path, "lcc", "    x = 1", ("    x = 1",), protocol) for protocol in (OFFICIAL, KVPRESS))
    assert official == 1 and kvpress == round(100 * 2 * 5 / 14) / 100
    assert graded(tmp_path, "triviaqa", " \nAnn", ("Ann",), KVPRESS) == 1
    even = LongBenchE("lcc", write(tmp_path, "lcc_e"), KVPRESS)
    assert even.grade("    x = 1", ("    x = 1",)) == 1 and even.rules.new_tokens == 84


def test_longbench_e_tells_the_bucket(talker, tmp_path):
    assert [bucket(n) for n in (0, 3999, 4000, 7999, 8000)] == ["0-4k", "0-4k", "4-8k", "4-8k", "8k+"]
    task = LongBenchE("hotpotqa", write(tmp_path, "hotpotqa_e", length=4000))
    (made,) = task.examples(talker, 900, 1, 0, haystack=(), mode="seen")
    assert made.meta["bucket"] == "4-8k" and made.task == "longbench_e/hotpotqa/official"


def test_an_unknown_task_is_refused(tmp_path):
    with pytest.raises(ValueError, match="longbench has no task 'hotpot', only narrativeqa"):
        LongBench("hotpot", Local(tmp_path))


def test_rows_are_read_one_by_one_and_in_order(tmp_path):
    file = tmp_path / "a.jsonl"
    file.write_text('{"x": "a\u2028b"}\n\n{"x": "é"}\r\n{"x": 2}', encoding="utf-8")
    found = load(Local(file), ("x",)).rows
    assert [row["x"] for row in found] == ["a\u2028b", "é", 2] and len(found) == 3 and found[1]["x"] == "é"
    array = tmp_path / "a.json"
    array.write_text('[{"x": 1}, {"x": 2.5}]')
    assert list(load(Local(array), ("x",)).rows) == [{"x": 1}, {"x": 2.5}]
    both = load(Parts((Local(array), Local(file))), ("x",))
    assert [row["x"] for row in both.rows] == [1, 2.5, "a\u2028b", "é", 2]
    assert both.digest == sha256(array.read_bytes() + file.read_bytes()).hexdigest()[:12]


def test_a_table_is_read_with_its_own_types(tmp_path):
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    file = tmp_path / "a.parquet"
    parquet.write_table(pyarrow.Table.from_pylist([{"x": "é", "n": 2**53 + 1}, {"x": "", "n": 0}]), file)
    assert list(load(Local(file), ("x", "n")).rows) == [{"x": "é", "n": 2**53 + 1}, {"x": "", "n": 0}]
    with pytest.raises(ValueError, match="a.parquet, row 0: the row has no field 'y', only x, n"):
        load(Local(file), ("y",))
    file.write_bytes(file.read_bytes()[:-9])
    with pytest.raises(ValueError, match="a.parquet: not a whole parquet file"):
        load(Local(file), ("x",))


def test_a_prompt_names_the_bytes_it_was_made_of(tmp_path, talker):
    digests = set()
    for changes in ({}, {}, {"input": "Whose?"}):
        task = LongBench("hotpotqa", write(tmp_path, "hotpotqa", **changes))
        (made,) = task.examples(talker, 900, 1, 0, haystack=(), mode="seen")
        digests.add(made.meta["data"])
    assert len(digests) == 2 and sha256((tmp_path / "hotpotqa.jsonl").read_bytes()).hexdigest()[:12] in digests


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("a.jsonl", '{"x": 1}\n{"y": 1}\n', "a.jsonl, line 2: the row has no field 'x', only y"),
        ("a.jsonl", '\n{"x": 1}\nx\n', "a.jsonl, line 3: not JSON"),
        ("a.jsonl", "[1]\n", "line 1: expected a JSON object, got list"),
        ("a.jsonl", "\n", "a.jsonl holds no rows"),
        ("a.jsonl", b'{"x": "\xff"}\n', "line 1: not JSON"),
        ("a.json", '{"x": 1}', "expected a JSON array of rows, got dict"),
        ("a.json", '[{"x": 1}, {}]', "a.json, row 1: the row has no field 'x', only none"),
        ("a.json", "[]", "a.json holds no rows"),
        ("a.csv", "x\n1\n", "a.csv: a file of rows ends in .jsonl, .json, .parquet, not '.csv'"),
    ],
)
def test_a_bad_file_is_refused_with_its_line(tmp_path, name, text, words):
    file = tmp_path / name
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=words):
        load(Local(file), ("x",))


def test_a_missing_file_says_both_ways_to_get_it(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(FileNotFoundError, match=r"hotpotqa.jsonl: put the published file there, or else: .*pip install datasets"):
        load(LocalOrHub(Local(tmp_path / "hotpotqa.jsonl"), Hub(longbench.ARCHIVE, "data/hotpotqa.jsonl")), ())
    with pytest.raises(FileNotFoundError, match="put the benchmark's x.jsonl there"):
        load(Local(tmp_path / "x.jsonl"), ())


def test_the_hubs_archive_is_opened_by_the_package(tmp_path, monkeypatch):
    """An archive in the layout of LongBench's data.zip, on this machine instead of the hub."""
    pytest.importorskip("datasets")
    monkeypatch.setenv("KVJAX_CACHE", str(tmp_path / "cache"))
    with zipfile.ZipFile(tmp_path / "data.zip", "w") as archive:
        archive.writestr("data/hotpotqa.jsonl", json.dumps(ROW) + "\n")
    hub = Hub(str(tmp_path / "data.zip"), "data/hotpotqa.jsonl")
    task = LongBench("hotpotqa", LocalOrHub(Local(tmp_path / "hotpotqa.jsonl"), hub))
    assert list(task.rows) == [ROW] and list((tmp_path / "cache" / "datasets").iterdir())
    write(tmp_path, "hotpotqa", length=1)
    assert LongBench("hotpotqa", task.source).rows[0]["length"] == 1  # the local file goes first
    with pytest.raises(OSError, match="cannot fetch .*no.zip"):
        load(Hub(str(tmp_path / "no.zip"), "data/x.jsonl"), ())
