"""Text that calibrates, trains and is evaluated on: apart by construction, told in artefacts and rows, refused where it is not."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

import kvjax
from experiments import leaks, passages, sweep, text_splits
from experiments.calibrate import find
from experiments.leaderboard.cells import Cells, without
from experiments.policies import Named
from experiments.rows import RowFile
from experiments.tasks import ppl
from experiments.tasks.text import PACKAGE, Haystack, haystack
from kvjax.artefacts.artefact import BUILT_IN, load, save
from kvjax.artefacts.sources import sources

SHIPS = "\n\n".join(f"Paragraph {i} of {i * 7} tells of a ship that sailed in {1500 + i} with a crew of {i}." for i in range(200))
BIRDS = "\n\n".join(f"In winter {1600 + i} bird {i} was seen on roof {i * 3} of the old town by {i} guests." for i in range(200))


@pytest.fixture(scope="module")
def fitted(talker):
    """An artefact that read the first text."""
    settings = find("hcattention").DEFAULTS | dict(samples=1, length=60, groups=4, centroids=4, max_iter=1)
    text = Haystack(SHIPS, "ships", "calibration")
    return find("hcattention").calibrate(talker, text, settings, seed=0, progress=lambda *at: None)


def plan(artefact):
    return sweep.Plan(((ppl, "-"),), (64,), (Named("hc", 1.0, kvjax.methods.hcattention(artefact=artefact)),), prompts=1)


def measured(lm, artefact, text, path):
    source = Haystack(text, "text")
    with RowFile(path, sweep.identity(lm, source)) as rows:
        sweep.run(lm, plan(artefact), source, rows)
    from experiments.rows import read

    return read(path)


def test_a_shared_stretch_is_found_and_none_where_there_is_none():
    mine = passages.sketch(SHIPS)
    words = SHIPS.split()
    assert passages.shared(mine, passages.hashes(BIRDS)) == 0
    assert passages.shared(mine, passages.hashes(" ".join([*BIRDS.split(), *words[300:500]]))) > 20
    assert passages.shared(mine, passages.hashes(" ".join(words[:11]) + " .")) == 0


def test_a_sketch_is_a_sample_of_what_is_left_out():
    long = " ".join(f"word{i}" for i in range(20_000))
    kept = passages.sketch(long)
    assert len(kept) == 16 * passages.MOST and kept == passages.sketch(long, " ".join(long.split()[50:900]))
    part = " ".join(long.split()[5_000:7_000])
    assert passages.shared(kept, passages.hashes(part)) == pytest.approx(2_000 * passages.MOST / 20_000, abs=40)


def test_splits_are_disjoint_and_apart_from_what_is_evaluated(tmp_path):
    path = tmp_path / "ships.txt"
    path.write_text(SHIPS)
    inside = Haystack(BIRDS + "\n\n" + SHIPS.split("\n\n")[17], "evaluated")
    found = text_splits.splits(path, evaluated=inside)
    parts = {name: set(split.text.split("\n\n")) for name, split in found.items()}
    assert set(parts) == {"train", "calibration", "held-out"}
    assert sum(map(len, parts.values())) == len(set().union(*parts.values())) == 199
    for split in found.values():
        assert passages.shared(passages.sketch(split.text), passages.hashes(inside.text)) == 0
    assert len({split.digest for split in found.values()}) == 3


def test_an_artefact_says_what_it_read_and_keeps_it(talker, fitted, tmp_path):
    again = load(save(fitted, tmp_path / "art"), "hcattention", talker)
    assert again.data == fitted.data and again.passages == fitted.passages == passages.sketch(SHIPS)
    assert (again.data["source"], again.data["split"], again.data["text"]) == ("ships", "calibration", Haystack(SHIPS, "").digest)
    policy = kvjax.methods.hcattention(artefact=tmp_path / "art")
    assert leaks.read_by(policy) == {fitted.origin: f"calibration of ships, {again.data['text']}"}
    assert sources(kvjax.methods.snapkv().in_full()) == {}


def test_a_sweep_refuses_an_artefact_that_read_its_text(talker, fitted, tmp_path):
    with pytest.raises(ValueError, match=r"hc: its artefact \(hcattention of toy, \w+\) read the text that.*kvjax calibrate"):
        measured(talker, fitted, f"{BIRDS}\n\n{SHIPS[2000:5000]}", tmp_path / "a.jsonl")
    unknown = replace(fitted, passages="", tables={**fitted.tables, "energy": np.zeros((2, 2), np.float32)})
    with pytest.raises(ValueError, match="does not say what it read"):
        measured(talker, unknown, BIRDS, tmp_path / "b.jsonl")
    assert not (tmp_path / "a.jsonl").read_text() and not (tmp_path / "b.jsonl").read_text()


def test_a_leaderboard_leaves_such_a_method_out_and_says_why(fitted):
    full, coded = Named("full", 1.0, kvjax.methods.full()), plan(fitted).policies[0]
    why = leaks.refused([full, coded], SHIPS, "it all")
    found = without(Cells((full, coded), {"snapkv": "no"}), why)
    assert found.measured == (full,) and found.left_out == {"snapkv": "no"} | why and "read it all" in why["hc"]
    assert leaks.refused([full, coded], BIRDS, "it all") == {}


def test_rows_say_what_their_artefacts_read(talker, fitted, tmp_path):
    full, coded = measured(talker, fitted, BIRDS, tmp_path / "rows.jsonl")
    assert coded["artefacts"] == leaks.read_by(kvjax.methods.hcattention(artefact=fitted)) and "artefacts" not in full
    assert coded["split"] == full["split"] == "whole" and coded["prompts"].endswith(Haystack(BIRDS, "").digest)


def test_a_prompt_of_a_data_set_is_looked_at_too(talker, fitted, tmp_path, monkeypatch):
    """A task with files of its own cuts nothing from the haystack: what counts is each prompt."""
    made = ppl.examples
    with_data = lambda *words, **how: (replace(x, meta={**x.meta, "data": "abc"}) for x in made(*words, **how))  # noqa: E731
    monkeypatch.setattr(ppl, "examples", with_data)
    assert len(measured(talker, fitted, BIRDS, tmp_path / "birds.jsonl")) == 2
    with pytest.raises(ValueError, match="read prompt 0 of ppl"):
        measured(talker, fitted, SHIPS, tmp_path / "ships.jsonl")


def test_paragraphs_that_repeat_words_of_another_split_are_left_out(tmp_path):
    path = tmp_path / "twice.txt"
    paragraphs = SHIPS.split("\n\n")
    known = {name: next(x for x in paragraphs if text_splits.split_of(x) == name) for name in text_splits.SPLITS}
    echo = next(x for i in range(99) if text_splits.split_of(x := f"{known['calibration']} Again, {i}.") == "train")
    path.write_text(f"{SHIPS}\n\n{echo}")
    found = text_splits.splits(path, evaluated=Haystack(BIRDS, "evaluated"))
    assert echo not in found["train"].text and found["train"].dropped == 1 and known["calibration"] in found["calibration"].text


@pytest.mark.parametrize("earlier, later", [("calibration", "held-out"), ("held-out", "train")])
def test_the_split_that_is_filled_first_keeps_the_words(tmp_path, earlier, later):
    """Two paragraphs that share twelve words and fall into two splits: the later one is in none."""
    paragraphs = SHIPS.split("\n\n")
    known = next(x for x in paragraphs if text_splits.split_of(x) == earlier)
    echo = next(x for i in range(99) if text_splits.split_of(x := f"{known} Again, {i}.") == later)
    (tmp_path / "twice.txt").write_text("\n\n".join([echo, *paragraphs]))
    found = text_splits.splits(tmp_path / "twice.txt", evaluated=Haystack(BIRDS, "evaluated"))
    assert known in found[earlier].text and echo not in found[later].text and found[later].dropped == 1


def test_a_fifth_is_held_out_and_a_fifth_calibrated_on():
    """51 of 256 first bytes of a digest each: 10,000 paragraphs lie within 1.2 points (three standard deviations) of 19.92%."""
    found = Counter(text_splits.split_of(f"paragraph {i}") for i in range(10_000))
    assert found["held-out"] == pytest.approx(1992, abs=120) and found["calibration"] == pytest.approx(1992, abs=120)
    assert found["train"] == 10_000 - found["held-out"] - found["calibration"]
    assert text_splits.split_of(" paragraph\n7 ") == text_splits.split_of("paragraph 7")


@pytest.mark.slow
def test_built_in_artefacts_say_whether_they_read_the_haystack():
    """One that did is refused where prompts are cut from it; the calibration split is apart from it."""
    essays, calibration = passages.hashes(haystack().text), text_splits.calibration_text()
    for header in sorted(BUILT_IN.glob("*/*/header.json")):
        artefact = load(header.parent)
        assert artefact.passages, header
        assert (passages.shared(artefact.passages, essays) > 0) == (PACKAGE in artefact.data["source"]), header
        if artefact.data["split"] == "calibration":
            assert artefact.data["text"] == calibration.digest and artefact.passages == passages.sketch(calibration.text), header
