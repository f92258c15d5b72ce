"""docs/results: every page is what its command makes of the committed rows; what a page may show and what it says of it."""

import json

import pytest

from experiments.result_pages import ablation, standing
from experiments.result_pages.pages import FOLDER, PAGES, write
from kvjax.artefacts.artefact import BUILT_IN
from tests.experiments.conftest import row

ORIGIN = "compresskv of smollm2-135m, e6b1c260325b"


@pytest.mark.parametrize("name", list(PAGES))
def test_a_page_is_made_of_the_committed_rows(name, tmp_path):
    assert write(name, tmp_path).read_text() == (FOLDER / f"{name}.md").read_text(), f"run `kvjax results {name}`"


def test_the_folder_holds_no_other_page():
    assert {path.stem for path in FOLDER.glob("*.md")} == set(PAGES)


def test_pages_hold_no_history():
    for name in PAGES:
        words = (FOLDER / f"{name}.md").read_text()
        assert "commit " not in words.replace("a commit without", "") and "by hand" not in words


def test_a_command_writes_the_pages_that_are_asked_for(cli, tmp_path):
    code, out, err = cli("results", "d2o_table6", "--out", tmp_path, "--json", tmp_path / "r.json")
    assert code == 0 and "d2o_table6.md" in out, err
    assert [path.name for path in tmp_path.glob("*.md")] == ["d2o_table6.md"]
    assert json.loads((tmp_path / "r.json").read_text())["pages"] == [str(tmp_path / "d2o_table6.md")]
    code, _, err = cli("results", "table99", "--out", tmp_path)
    assert code == 2 and "no page of results is called 'table99'" in err


def test_rows_whose_artefact_does_not_say_what_it_read_are_not_shown():
    made = f"Policy(score=RetrievalHeads(origin='{ORIGIN}, best 4'), budget=256)"
    assert standing.told(row()) and not standing.told(row(policy_repr=made))
    assert standing.told(row(policy_repr=made, artefacts={ORIGIN: "calibration of documentation, ab12"}))
    assert not standing.told(row(policy_repr=made, artefacts={"hcattention of smollm2-135m, 89690adf96cd": "x"}))


def test_every_committed_row_of_a_built_in_artefact_is_recognised():
    """The origin that stages write is the one that rows are searched for."""
    for header in BUILT_IN.glob("*/*/header.json"):
        found = json.loads(header.read_text())
        origin = f"{found['method']} of {found['model']['name']}, {found['digest']}"
        assert not standing.told(row(policy_repr=f"Policy(encode=Stored(keys=P(origin='keys, {origin}')))")), header


def test_a_page_says_how_many_rows_are_not_from_a_clean_commit():
    rows = [row(commit="12ab", text="essays"), row(commit="12ab+", text="essays", split="whole"), row(commit=None, text="essays")]
    assert [standing.clean(one) for one in rows] == [True, False, False]
    assert standing.said(rows) == (
        "3 rows, 2 of them not from a commit without changes. Prompts are cut from essays (whole)."
    )


def test_an_ablation_without_rows_says_how_to_measure_it(monkeypatch, tmp_path):
    monkeypatch.setattr(ablation, "ROWS", tmp_path)
    assert "No rows yet" in ablation.page("d2o_table6") and "kvjax ablate d2o_table6" in ablation.page("d2o_table6")
