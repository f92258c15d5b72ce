"""ZeroSCROLLS: prompts cut before their query, and the graders, from small files in the official layout."""

import json

import pytest

from experiments.tasks.datasets import zeroscrolls
from experiments.tasks.datasets.metrics.ordering import concordance, near_percentage, same_letter

INPUT = "Answer it.\n\nBook:\n" + "A long story. " * 20 + "\n\nQuestion:\nWho?\n\nAnswer:\n"
AT = INPUT.index("\n\nQuestion:")
ROW = {
    "id": "a", "pid": "a_0", "input": INPUT, "output": "Ann", "document_start_index": 18, "document_end_index": AT,
    "query_start_index": AT, "query_end_index": len(INPUT) - 9, "truncation_seperator": "... [truncated]\n\n",
}  # fmt: skip


def make(folder, name, *rows):
    (folder / name).mkdir(exist_ok=True)
    (folder / name / "validation.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return next(task for task in zeroscrolls.tasks(folder) if task.task == name)


def test_a_long_input_is_cut_before_its_query(reader, tmp_path):
    task = make(tmp_path, "narrative_qa", ROW)
    whole, short = (next(task.examples(reader, length, 1, 0, haystack=(), mode="unseen")) for length in (900, 100))
    assert reader.decode(whole.compressed) == INPUT[:AT] and whole.new_tokens == 64
    assert reader.decode(short.compressed) == INPUT[: 100 - 17] + "... [truncated]\n\n" and len(short.compressed) == 100
    assert reader.decode(short.fed) == INPUT[AT:] + "\n" and short.meta["dropped_tokens"] == AT - 83
    with pytest.raises(ValueError, match="length 17 is too short: what marks a cut needs 17 tokens"):
        next(task.examples(reader, 17, 1, 0, haystack=(), mode="unseen"))


def test_rows_of_one_id_are_one_prompt(tmp_path):
    task = make(tmp_path, "qasper", ROW, ROW | {"pid": "a_1", "output": "Miss Bo"}, ROW | {"id": "b"})
    assert [task.references(row) for row in task.rows] == [("Ann", "Miss Bo"), ("Ann",)]
    assert task.grade("Bo", ("Ann", "Miss Bo")) == pytest.approx(2 / 3)
    assert len(zeroscrolls.tasks(tmp_path)) == 10


@pytest.mark.parametrize(
    ("answer", "reference", "score"),
    [("B", "(B) Ann", 1), ("The answer is (B), not A", "B", 1), ("A or B", "B", 0), ("Bob", "B", 0), ("", "B", 0), ("b", "B", 0)],
)
def test_the_first_letter_alone_counts(answer, reference, score):
    assert same_letter(answer, reference) == score


@pytest.mark.parametrize(
    ("answer", "score"), [("70%", 1), ("60%", 0.5), ("90 %", 0), ("90%", 0.25), ("75.0% or 70%", 0.5**0.5), ("70", 0), ("", 0)]
)
def test_percentages_lose_half_every_ten_points(answer, score):
    assert near_percentage(answer, "70%") == pytest.approx(score)


@pytest.mark.parametrize(
    ("answer", "score"),
    [
        ("3, 1, 2", 1), ("3 1 2", 1), ("2, 1, 3", 0), ("1, 3, 2", 2 / 3), ("[3], [2], [1]", 2 / 3), ("3, 1", 0), ("3, 1, 2, 2", 0),
        ("", 0), ("Summary 3, 1 then 2.", 1),
    ],
)  # fmt: skip
def test_orders_share_pairs(answer, score):
    assert concordance(answer, "3, 1, 2") == pytest.approx(score)


def test_summaries_have_the_geometric_mean_of_three_rouges(tmp_path):
    """Against "the cats sat": stemmed words the, cat, sat. ROUGE-1 of "a cat sat" is 2/3, ROUGE-2 1/2, ROUGE-L 2/3."""
    task = make(tmp_path, "gov_report", ROW)
    assert task.also("a cat sat", ("the cats sat",)) == pytest.approx({"rouge1": 2 / 3, "rouge2": 1 / 2, "rougeL": 2 / 3})
    assert task.grade("a cat sat", ("the cats sat",)) == pytest.approx((2 / 9) ** (1 / 3))
    assert task.grade("", ("the cats sat",)) == 0 and make(tmp_path, "quality", ROW).also("A", ("A",)) == {}


def test_other_layouts_are_refused(reader, tmp_path):
    ask = lambda **changes: next(make(tmp_path, "musique", ROW | changes).examples(reader, 900, 1, 0, haystack=(), mode="seen"))  # noqa: E731
    with pytest.raises(ValueError, match="row 'a' has no output; test.jsonl comes without: use validation.jsonl"):
        ask(output=None)
    with pytest.raises(ValueError, match="row 'a' has query_start_index 100000"):
        ask(query_start_index=100_000)
    with pytest.raises(ValueError, match="zeroscrolls has no task 'zork'"):
        zeroscrolls.ZeroScrolls("zork", None)
    for metric in (same_letter, near_percentage):
        with pytest.raises(ValueError, match="expected a reference with a"):
            metric("A 1%", "none")
