"""Ablations: every script is well-formed, and the paper's ordering is compared with ours prompt by prompt."""

import pytest

import kvjax
from experiments.ablations import names
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.compare import markdown, pairs
from experiments.ablations.figure import draw
from experiments.ablations.run import Settings, find, run
from experiments.console import progress
from experiments.rows import key
from experiments.tasks.text import Haystack
from tests.experiments.conftest import TEXT, lines, row


@pytest.fixture
def variants():
    full = kvjax.methods.full()
    return [Variant("good", full, {"A": 3.0, "B": 5.0}), Variant("bad", full, {"A": 1.0, "B": 2.0}), Variant("ours only", full)]


@pytest.fixture
def rows():
    found = []
    for prompt in range(6):
        found += [row(policy="good", prompt=prompt, score=1.0), row(policy="bad", prompt=prompt, score=float(prompt == 0))]
        nll = dict(task="ppl", mode="-", prompt=prompt)
        found += [row(policy="good", nll=3.2 + prompt, **nll), row(policy="bad", nll=3.1 + prompt, **nll)]
    for r in found:
        r.pop("score" if r["task"] == "ppl" else "nll", None)
    return found


def test_orderings_are_paired_and_say_when_they_are_reversed(variants, rows):
    needle, ppl = pairs(variants, rows)
    assert (needle.better, needle.worse, needle.published) == ("good", "bad", 2.5)
    assert needle.verdict == "agrees" and needle.ours.mean == pytest.approx(5 / 6)
    assert ppl.verdict == "reversed" and ppl.ours.mean == pytest.approx(-0.1)
    assert ppl.ours.low == pytest.approx(ppl.ours.high)


def test_the_table_has_both_rankings(variants, rows, tmp_path):
    ablation = Ablation("Title", "source", lambda lm, budget: variants, budget=0.5, note="A note.")
    text = markdown(ablation, variants, rows)
    assert "| good | 3 | 5 | 1 | 100 n=6 | 1 | 5.7000 n=6 | 2 | 5.10 | 0.00 |" in text
    assert "| ours only | - | - | - | - | - | - | - | - | - |" in text
    assert "needle unseen: 1 of 1 orderings of the paper hold" in text and "ppl: 0 of 1" in text and "A note." in text
    assert draw(ablation, variants, rows, tmp_path / "x.png").stat().st_size > 5000


@pytest.mark.parametrize("name", names())
def test_every_script_names_its_table(name):
    ablation = find(name)
    assert ablation.title and "arXiv" in ablation.source


def test_an_unknown_name_lists_the_known():
    with pytest.raises(ValueError, match="d2o_table4"):
        find("table99")


def test_a_run_leaves_rows_traces_and_a_table(talker, tmp_path, monkeypatch):
    """An ablation of two cheap variants, run as any file of the folder is."""
    make = {"sinks": kvjax.methods.streaming_llm, "keys": kvjax.methods.keydiff}
    variants = lambda lm, budget: [Variant(label, method(budget=budget)) for label, method in make.items()]  # noqa: E731
    cheap = Ablation("Title", "source", variants, budget=0.5, tasks="ppl")
    monkeypatch.setattr("experiments.ablations.run.find", lambda name: cheap)
    settings = Settings(lengths=(420,), prompts=2)
    with progress() as bar:
        report = run("cheap", talker, Haystack(TEXT, "toy"), settings, tmp_path, progress=bar)
    rows, traces = lines(tmp_path / "cheap.jsonl"), lines(tmp_path / "cheap.traces.jsonl")
    assert (tmp_path / "cheap.md").read_text() == report and (tmp_path / "cheap.png").is_file()
    assert len(rows) == 2 * 3 and {row["policy"] for row in rows} == {"full", "sinks", "keys"}
    first = {key(row): row["kept_slots"] for row in rows if row["prompt"] == 0}
    assert {key(trace): sum(map(sum, trace["lengths"])) for trace in traces} == first
