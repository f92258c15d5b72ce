"""The leaderboard from rows made by hand: its table, its page, its fronts, and a run on a toy that is resumed."""

import csv
import json
import re
import shlex
import sys
from dataclasses import replace

import pytest
import typer

from experiments.cli import app
from experiments.leaderboard.board import MEAN, group, places
from experiments.leaderboard.cells import cells, with_built_in
from experiments.leaderboard.front import front
from experiments.leaderboard.kinds import KINDS, kind
from experiments.leaderboard.page import datum, specifications
from experiments.leaderboard.write import write
from experiments.measure import batches
from experiments.pages.charts import library
from experiments.policies import parse_policy
from experiments.stats import mean_of, share, share_difference
from kvjax.artefacts import artefact
from tests.experiments.conftest import lines, row
from tests.experiments.pages import Loads

#: Bytes, seconds a token and right answers of ten, of each cell.
CELLS = {
    ("full", 1.0): (10_000_000, 0.040, 10),
    ("snapkv", 0.5): (5_000_000, 0.020, 8),
    ("snapkv", 0.25): (2_500_000, 0.010, 4),
    ("keydiff", 0.5): (5_000_000, 0.030, 9),
    ("keydiff", 0.25): (2_500_000, 0.030, 3),
    ("kivi", 1.0): (4_000_000, 0.050, 9),
    ("h2o", 0.25): (2_600_000, 0.005, 4),
}


def made(tasks=("needle", "vt"), prompts=10, **more):
    """Every cell on every task with a score, and on perplexity."""
    found = []
    for (policy, budget), (size, seconds, right) in CELLS.items():
        common = dict(policy=policy, policy_repr=f"{policy} {budget}", budget=budget, allocated_bytes=size, rows=1)
        common |= dict(seconds_per_token=seconds, seconds_compress=2 * seconds) | more
        for i in range(prompts):
            found += [row(**common, prompt=i, task=task, score=float(i < right)) for task in tasks]
            found.append(row(**common, prompt=i, task="ppl", mode="-", nll=4.0 - 0.1 * right + i))
            del found[-1]["score"]
    return found


def of(found, task):
    return {place.name: place for place in found if place.task == task}


@pytest.fixture(scope="module")
def board(tmp_path_factory):
    """(rows, what was written, the page's text)."""
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: the extra `pages`")
    rows = made()
    written = write(rows, tmp_path_factory.mktemp("board"), left_out={"dms": "dms needs <weights>"}, command="kvjax leaderboard")
    return rows, written, written.page.read_text()


def test_the_front_of_six_points():
    #        a    b    c    d: as cheap as c and worse, e: dearer and worse than c, f: no cost
    costs = [1.0, 2.0, 3.0, 3.0, 4.0, None]
    worths = [0.1, 0.5, 0.9, 0.7, 0.8, 1.0]
    assert front(costs, worths, list("abcdef")) == [True, True, True, False, False, False]
    assert front([1.0, 1.0], [0.5, 0.5], ["b", "a"]) == [False, True]


def test_fronts_of_bytes_and_of_time():
    found = of(places(made()), "needle unseen")
    # by bytes: 2.5 MB 40%, 4 MB 90%, 10 MB 100%; by time: 5 ms 40%, 20 ms 80%, 30 ms 90%, 40 ms 100%
    assert {name for name, place in found.items() if place.cheap} == {"snapkv 0.25", "kivi", "full"}
    assert {name for name, place in found.items() if place.fast} == {"h2o 0.25", "snapkv 0.5", "keydiff 0.5", "full"}
    assert list(found)[:3] == ["full", "kivi", "keydiff 0.5"] and [p.kind for p in found.values()][:2] == ["full cache", "quantise"]


def test_nats_are_better_when_lower():
    found = of(places(made()), "ppl")
    assert list(found)[0] == "full" and found["full"].unit == "nats"
    assert {name for name, place in found.items() if place.cheap} == {"snapkv 0.25", "kivi", "full"}


def test_cells_decoded_together_have_no_time_to_rank_by():
    assert not any(place.fast for place in places(made(rows=7)))


def test_the_mean_is_of_the_tasks_with_scores_and_its_interval_of_theirs():
    rows = [r for r in made() if not (r["task"] == "vt" and r["policy"] == "h2o")]
    found = places(rows)
    mean, needle = of(found, MEAN), of(found, "needle unseen")
    assert found[0].task == MEAN and "h2o 0.25" in needle and "h2o 0.25" not in mean
    assert mean["snapkv 0.5"].entry.score.mean == pytest.approx(0.8) and mean["snapkv 0.5"].entry.score.count == 20
    one, two = (e.high - e.low for e in (needle["snapkv 0.5"].entry.score, mean["snapkv 0.5"].entry.score))
    assert two == pytest.approx(one / 2**0.5)  # two tasks alike
    assert MEAN not in {place.task for place in places(made(tasks=("needle",)))}


def test_there_is_no_mean_of_unequal_prompts():
    found = places([r for r in made() if not (r["task"] == "vt" and r["policy"] == "snapkv" and r["prompt"] == 0)])
    assert "keydiff 0.5" in of(found, MEAN) and not any(name.startswith("snapkv") for name in of(found, MEAN))
    assert MEAN not in {place.task for place in places([r for r in made() if not (r["task"] == "vt" and r["prompt"] == 0)])}


def test_intervals_have_a_width_where_all_agree():
    assert (share([1.0] * 5).low, share([1.0] * 5).high) == (pytest.approx(0.5655, abs=1e-4), 1.0)
    same = share_difference([1.0] * 5, [1.0] * 5)
    assert (same.mean, same.low, same.high) == (0.0, pytest.approx(-0.4345, abs=1e-4), pytest.approx(0.4345, abs=1e-4))
    assert mean_of([share([1.0] * 5)] * 4).low == pytest.approx(1 - 0.4345 / 2, abs=1e-4)


def test_newcombes_interval_of_his_table():
    # Newcombe (1998), paired data, method 10: 36 both, 12 the first alone, 2 the second alone, none neither
    first, second = [1.0] * 36 + [1.0] * 12 + [0.0] * 2, [1.0] * 36 + [0.0] * 12 + [1.0] * 2
    found = share_difference(first, second)
    assert (found.mean, found.low, found.high) == pytest.approx((0.2, 0.0569, 0.3404), abs=5e-5)


def test_the_table_holds_every_number(board):
    rows, written, _ = board
    found = list(csv.DictReader(written.csv.read_text().splitlines()))
    assert len(found) == len(written.places) == 4 * len(CELLS)
    one = next(r for r in found if (r["task"], r["method"], r["budget"]) == ("needle unseen", "keydiff", "0.25"))
    assert float(one["score"]) == 0.3 and float(one["score_low"]) == pytest.approx(share([1.0] * 3 + [0.0] * 7).low)
    assert float(one["minus_full"]) == pytest.approx(-0.7) and float(one["minus_full_high"]) < 0
    assert float(one["device_bytes"]) == 2_500_000 and float(one["seconds_per_token"]) == 0.030
    assert (one["front_bytes"], one["n"], one["kind"]) == ("False", "10", "evict")


def test_the_page_holds_the_rows_and_asks_for_nothing(board):
    _, written, page = board
    loads = Loads(page)
    assert all(address.startswith("#") for address in loads.found) and "@import" not in page
    assert "default-src 'none'" in page and "connect-src" not in page
    head = page[: page.index('<script type="module">')]
    assert "http:" not in head and "https:" not in head and "url(" not in head
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    assert data["rows"] == [datum(i, place) for i, place in enumerate(written.places)]
    assert data["charts"] == specifications(written.places) and set(data["charts"]) == {"share", "nats"}
    assert page.count("<tr id=") == len(written.places) and "dms needs &lt;weights&gt;" in page
    for text in ("100 [72, 100]", "40 [17, 69]", "7.500 ±", "-70 ["):
        assert text in page


def test_every_rows_command_asks_for_its_cell(board):
    _, written, page = board
    command = typer.main.get_command(app).commands["leaderboard"]
    found = [line.replace("&#39;", "'") for line in re.findall(r'data-copy="([^"]*)"', page)]
    for place, line in zip(written.places, found, strict=True):
        words = shlex.split(line)
        given = command.make_context("leaderboard", words[2:]).params
        assert words[:2] == ["kvjax", "leaderboard"] and given["methods"] == place.entry.policy and given["prompts"] == 10
        assert place.budget in ("own", given["budgets"]) and not given["batched"]
        assert given["tasks"] == {MEAN: "needle,vt", "ppl": "ppl"}.get(place.task, place.task.split()[0])
        assert given["lengths"] == "64" and given["folder"].parent == written.page.parent / "again"


def test_the_chart_draws_the_front(board):
    """The specification, filled and rendered by the library that the page has inside: its rings stand around the front's rows."""
    import vl_convert

    _, written, _ = board
    for unit, task in (("share", "needle unseen"), ("nats", "ppl")):
        shown = [place for place in written.places if place.task == task]
        for name, on in (("bytes", "cheap"), ("time", "fast")):
            filled = {**specifications(written.places)[unit][name], "width": 300, "data": {"values": [datum(0, p) for p in shown]}}
            names = texts_of(vl_convert.vegalite_to_svg(filled))
            assert names & {place.name for place in shown} == {place.name for place in shown if getattr(place, on)}


def texts_of(svg):
    return set(re.findall(r"<text[^>]*>([^<]*)</text>", svg))


def test_without_its_extra_a_leaderboard_says_so_at_once(cli, tmp_path, haystack_file, monkeypatch):
    library.cache_clear()
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    code, _, err = cli("leaderboard", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "o")
    assert code == 2 and err.count("\n") == 1 and "pip install -e '.[pages]'" in err and not (tmp_path / "o").exists()


def test_every_method_has_a_kind_and_a_cell_or_a_reason(talker):
    import kvjax

    found = cells(kvjax.methods.names(), [0.5, 0.25], talker.decoder, [1024])
    measured = {cell.name for cell in found.measured}
    assert measured | set(found.left_out) == set(kvjax.methods.names()) and not measured & set(found.left_out)
    assert all(found.left_out.values()) and {"dms", "kvzap", "fasa"} <= set(found.left_out)
    budgets = {name: [cell.budget for cell in found.measured if cell.name == name] for name in measured}
    assert budgets["snapkv"] == [0.5, 0.25] and budgets["quest"] == [1.0] and budgets["arkv"] == [512, 256]
    assert budgets["pyramid_infer"] == [1.0]  # tokens leave the prompt while it is read: it reads its prompts alone
    assert {kind(kvjax.methods.info(name)) for name in kvjax.methods.names()} == set(KINDS)
    some = cells(["arkv"], [64, 16], talker.decoder, [1024])  # its window has 32
    assert [cell.budget for cell in some.measured] == [64] and list(some.left_out) == ["arkv at 16"]
    with pytest.raises(ValueError, match="unknown method 'nope'"):
        cells(["nope"], [0.5], talker.decoder, [64])


def test_methods_whose_weights_are_the_models_own_want_a_model_that_was_trained_for_them(talker):
    names = ["dmc", "neural_garbage_collection"]
    plain = cells(names, [0.5], talker.decoder, [1024])
    assert not plain.measured and set(plain.left_out) == set(names)
    assert "kvjax train dmc --out FOLDER`, then --model MODEL+FOLDER" in plain.left_out["dmc"]
    trained = cells(names, [0.5], replace(talker.decoder, retrofit="dmc of toy, 0123456789ab"), [1024])
    assert [cell.name for cell in trained.measured] == ["dmc"] and list(trained.left_out) == ["neural_garbage_collection"]


def test_a_method_is_measured_with_what_is_built_in_for_the_model(tmp_path, monkeypatch):
    """Of a method whose default it is not, in the words of the command line; what is given stays."""
    monkeypatch.setattr(artefact, "BUILT_IN", tmp_path)
    for method in ("fasa", "kvzap"):
        for model in ("small", "smollm2-135m"):
            (tmp_path / model / method).mkdir(parents=True)
            (tmp_path / model / method / "header.json").touch()
    asked = ["fasa", "kvzap", "kvzap:threshold=3", "kvzap:artefact=out/mine", "dms", "snapkv"]
    taken = ["kvzap:artefact=small", "kvzap:threshold=3,artefact=small", "kvzap:artefact=out/mine", "dms", "snapkv"]
    assert with_built_in(asked, "small") == ["fasa:artefact=small", *taken]
    assert with_built_in(asked, "smollm2-135m")[:2] == ["fasa", "kvzap:artefact=smollm2-135m"]
    assert with_built_in(asked, "another") == asked


def test_a_merger_that_leaves_a_bias_is_decoded_apart():
    """Pools with and without a bias do not stack, so a batch of all methods would end at the first such pair."""
    named = [parse_policy(name, 0.5) for name in ("attention_matching", "snapkv", "keydiff")]
    assert sorted([cell.name for cell in group] for group in batches(named, 32)) == [["attention_matching"], ["snapkv", "keydiff"]]


def test_slots_are_filtered_as_the_share_they_are():
    (_, place) = sorted(places([row(policy="full", budget=1.0), row(policy="arkv", budget=32)]), key=lambda p: p.name == "arkv 32")
    assert (place.budget, group(place)) == ("32", "0.5")


def test_slots_made_of_a_share_are_that_share():
    rows = [row(policy="full", budget=1.0), row(policy="snapkv", budget=0.1), row(policy="arkv", budget=6)]
    assert {place.name: group(place) for place in places(rows)} == {"full": "own", "snapkv 0.1": "0.1", "arkv 6": "0.1"}


def test_the_length_of_the_most_rows_comes_first():
    few = made(tasks=("vt",), prompts=3, length=50)
    many = made(tasks=("needle",), prompts=10, length=90)
    for rows in (few + many, many + few):
        assert list(dict.fromkeys((p.task, p.length) for p in places(rows)))[:2] == [("needle unseen", 90), ("ppl", 90)]


def test_the_mean_comes_first_or_else_the_task_of_most_prompts():
    assert places(made())[0].task == MEAN
    rows = [r for r in made() if r["task"] != "vt" or r["prompt"] == 0]
    assert places(rows)[0].task == "needle unseen"
    seen = [r | {"mode": "seen"} for r in made(tasks=("needle",), prompts=4) if r["task"] == "needle"]
    assert list(dict.fromkeys(p.task for p in places(rows + seen))) == ["needle unseen", "needle seen", "vt unseen", "ppl"]


def test_one_task_seen_and_unseen_has_no_mean():
    rows = [r for r in made(tasks=("needle",)) if r["task"] == "needle"]
    seen = [r | {"mode": "seen"} for r in rows]
    assert list(dict.fromkeys(p.task for p in places(seen + rows))) == ["needle unseen", "needle seen"]
    assert places(seen + made(tasks=("needle", "vt")))[0].task == MEAN


def test_a_run_prints_its_plan_and_is_resumed(cli, tmp_path, haystack_file):
    words = ["leaderboard", "--model", "toy", "--methods", "snapkv:window=8,dms", "--budgets", "0.5", "--lengths", 420]
    words += ["--text", haystack_file, "--out", tmp_path / "out", "--json", tmp_path / "r.json"]
    code, out, err = cli(*words, "--tasks", "needle", "--prompts", 2, "--dry-run")
    assert code == 0, err
    assert "2 methods in 2 cells: full; snapkv:window=8 at 0.5" in out and "left out: policy 'dms'" in out
    assert "with --batched" in out and "4 rows to measure, 0 found" in out and "decode steps, at least" in out
    assert not (tmp_path / "out").exists()
    code, out, err = cli(*words, "--tasks", "needle", "--prompts", 1)
    assert code == 0, err
    first = lines(tmp_path / "out" / "rows.jsonl")
    assert [r["rows"] for r in first] == [1, 1] and "2 rows measured, 0 found" in out
    code, out, err = cli(*words, "--tasks", "needle", "--prompts", 1)
    assert code == 0 and "0 rows measured, 2 found" in out and lines(tmp_path / "out" / "rows.jsonl") == first
    page = (tmp_path / "out" / "leaderboard.html").read_text()
    assert page.count("<tr id=") == 2 and "<span>snapkv:window=8 0.5</span>" in page
    assert "dms needs its weights" in page and json.loads((tmp_path / "r.json").read_text())["found"] == 2
    assert not list((tmp_path / "out").glob(".*"))
    file = tmp_path / "out" / "rows.jsonl"
    others = [first[0] | {"prompt": 7}, first[1] | {"policy": "tova", "policy_repr": "T"}, first[0] | {"task": "vt"}]
    file.write_text("".join(json.dumps(r) + "\n" for r in first + others))
    code, out, err = cli(*words, "--tasks", "needle", "--prompts", 1)
    again = (tmp_path / "out" / "leaderboard.csv").read_text().splitlines()
    assert code == 0 and "0 rows measured, 2 found" in out and len(again) == 3  # what was not asked for is not shown


@pytest.mark.parametrize(
    ("words", "reason"),
    [(["--methods", "nope"], "unknown method 'nope'"), (["--budgets", "2.5"], "budget '2.5'"), (["--tasks", "x"], "unknown task")],
)
def test_bad_input_is_one_line(cli, tmp_path, haystack_file, words, reason):
    code, _, err = cli("leaderboard", "--model", "toy", "--text", haystack_file, "--out", tmp_path / "o", *words)
    assert code == 2 and err.count("\n") == 1 and reason in err and not (tmp_path / "o").exists()
