"""Ablations: every script is well-formed, and the paper's ordering is compared with ours prompt by prompt."""

import pytest

import kvjax
from experiments.ablations import names
from experiments.ablations.ablation import Ablation, Variant
from experiments.ablations.compare import markdown, pairs
from experiments.ablations.figure import draw
from experiments.ablations.run import find
from tests.experiments.conftest import row


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
