"""`kvjax study`: cells of a schema, measured, resumed and replaced; no ratio without quality; rates from a queue made by hand."""

import json
import math
import tempfile

import pytest

import kvjax
from experiments import other_work
from experiments.full_cache import full_nbytes
from experiments.policies import parse_policy
from experiments.rows import read
from experiments.serving.queueing import Server, arrivals, serve, timeline
from experiments.stats import share
from experiments.study import cell, compared, live, paged, quality, rates, run, show, tables
from tests.experiments.conftest import lines

WORDS = ("--lengths", 420, "--batches", 2, "--prompts", 2, "--new", 4, "--rounds", 1, "--rates", "0.5", "--memory", 1)
POLICIES = ["full", "knorm", "infinigen:part=0.5,skip_layers=1"]


def made(**changes) -> cell.Cell:
    """A cell of the full cache: 1,000 tokens of 100 bytes and 24 new ones."""
    found = dict(
        model="toy", dtype="float32", policy="full", policy_repr="F", budget=1.0, length=1000, tokens=1000, batch=1, new=24,
        slot_bytes=100, cache_bytes=110_000, host_bytes=0, moved_bytes=0.0, asked_bytes=0.0, peak_bytes=500_000,
        peak_from=cell.LIVE, first_seconds=(2.0, 4.0, 3.0), step_seconds=(0.1, 0.3, 0.125), others=0.1,
    )  # fmt: skip
    return cell.Cell(**found | changes)


H2O = made(policy="h2o", policy_repr="H", budget=0.5, cache_bytes=55_000, first_seconds=(2.0,) * 3, step_seconds=(0.125,) * 3)
FULL, HALF = share([1.0] * 4), share([1.0, 1.0, 0.0, 0.0])
FULLS, HALVES = {("F", 1.0, 1000): dict.fromkeys(range(9), 1.0)}, {("H", 0.5, 1000): {0: 1.0, 1: 1.0, 2: 0.0, 3: 0.0}}
BOTH = FULLS | HALVES


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    """A folder with a measured study of the toy model: (rows, answers, JSON, what was printed, the command's words, run again)."""
    import models
    from experiments import cli
    from tests.experiments.conftest import TEXT, made_talker

    folder, talker = tmp_path_factory.mktemp("study"), made_talker()
    (folder / "text").write_text(TEXT)
    words = ["study", "--model", "toy", "--policies", ",".join(POLICIES), "--budgets", "0.5", "--text", folder / "text", *WORDS]
    words += ["--out", folder / "s.jsonl", "--json", folder / "s.json"]

    def again(*more) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(models, "load", lambda name, dtype="float32": talker)
            patch.setattr(tempfile, "tempdir", str(folder))  # the benchmarks' lock is another than that of tests beside this one
            return cli.main([str(word) for word in (*words, *more)])

    assert again() == 0
    return folder, again


def test_the_most_that_was_alive_at_any_look_counts(monkeypatch):
    """10 bytes before, then 50, 90 and 20: 80 more at most, beside the 1,000 of the model."""
    alive = iter([10, 50, 90, 20])
    monkeypatch.setattr(live, "_alive", lambda: next(alive))
    monkeypatch.setattr(live, "_counter", lambda: 0)
    peak = live.Peak(1000)
    for _ in range(3):
        peak.look()
    assert peak.found == (1080, cell.LIVE)
    monkeypatch.setattr(live, "_counter", lambda: 5000)
    assert peak.found == (5000, cell.COUNTED)


def test_rows_have_the_schema(study, talker):
    folder, _ = study
    rows = read(folder / "s.jsonl", cell.study)
    assert [(row["policy"], row["batch"]) for row in rows] == [(p, 2) for p in POLICIES]
    by = {(row["policy"], row["batch"]): cell.of_row(row) for row in rows}
    full, knorm, infinigen = (by[name, 2] for name in POLICIES)
    whole = full_nbytes(talker, full.tokens + 4) * 2
    assert full.slot_bytes == full_nbytes(talker, 1) and whole <= full.cache_bytes < 1.2 * whole
    assert knorm.cache_bytes < 0.7 * full.cache_bytes
    assert (full.host_bytes, full.moved_bytes, knorm.moved_bytes) == (0, 0, 0)
    assert infinigen.host_bytes > 0 and infinigen.moved_bytes >= infinigen.asked_bytes > 0
    assert all(x.peak_from == cell.LIVE and x.peak_bytes > talker.nbytes + x.cache_bytes for x in by.values())
    assert all({"commit", "machine", "versions", "text", "prompts"} <= set(row) for row in rows)


def test_moved_bytes_are_the_lists_of_every_layer_but_the_first(study, talker):
    """A list of `most` slots for each of the heads of the second layer, a key and a value of 16 float32 each."""
    rows = [cell.of_row(row) for row in read(study[0] / "s.jsonl", cell.study) if row["policy"].startswith("infinigen")]
    for found in rows:
        cap = math.ceil(0.2 * found.tokens)
        exact = found.batch * talker.decoder.heads * cap * 2 * 16 * 4
        assert exact * 0.9 <= found.moved_bytes <= exact * 1.3


def test_a_cell_is_measured_on_the_prompts_it_says(study, talker):
    """The cache after the last token is that of `generate`."""
    row = read(study[0] / "s.jsonl", cell.study)[1]
    ids = (study[0] / "text").read_text()
    from experiments.tasks import needle
    from experiments.tasks.chat import encode_plain

    prompts = [list(x.compressed) for x in needle.examples(talker, 420, 2, 0, haystack=encode_plain(talker, ids), mode="unseen")]
    out = kvjax.generate(talker, prompts, kvjax.methods.knorm(budget=0.5), max_new_tokens=4, stop=())
    assert (row["tokens"], row["cache_bytes"]) == (max(map(len, prompts)), out.cache.nbytes)


def test_a_study_goes_on_where_it_was(study, capsys):
    folder, again = study
    want, answers = (folder / "s.jsonl").read_text(), (folder / "s.quality.jsonl").read_text()
    assert len(answers.splitlines()) == 2 * 3
    (folder / "s.jsonl").write_text("".join(line + "\n" for line in want.splitlines()[:-1]) + '{"torn')
    assert again() == 0
    assert "1 cells and 0 answers measured" in capsys.readouterr().out
    found = lines(folder / "s.jsonl")
    assert [row["policy"] for row in found] == [row["policy"] for row in map(json.loads, want.splitlines())]
    assert found[:-1] == [json.loads(line) for line in want.splitlines()[:-1]]
    assert (folder / "s.quality.jsonl").read_text() == answers


def test_answers_of_other_files_are_not_asked_again(study, capsys):
    folder, again = study
    (folder / "t.jsonl").write_text((folder / "s.jsonl").read_text())
    assert again("--out", folder / "t.jsonl", "--answers", folder / "s.quality.jsonl", "--json", folder / "t.json") == 0
    assert "0 cells and 0 answers measured" in capsys.readouterr().out and not (folder / "t.quality.jsonl").exists()
    assert all(x["quality"]["count"] == 2 for x in json.loads((folder / "t.json").read_text())["study"]["cells"])


def test_times_are_measured_anew_in_place(study, capsys):
    folder, again = study
    want, answers = lines(folder / "s.jsonl"), (folder / "s.quality.jsonl").read_text()
    assert again("--times-only", "--policies", "infinigen:part=0.5,skip_layers=1") == 0
    found = lines(folder / "s.jsonl")
    assert "1 cells and 0 answers measured" in capsys.readouterr().out and len(found) == len(want) == 3
    assert found[:2] == want[:2] and found[2]["cache_bytes"] == want[2]["cache_bytes"]
    assert found[2]["step_seconds"] != want[2]["step_seconds"]
    assert (folder / "s.quality.jsonl").read_text() == answers and not (folder / "s.again.jsonl").exists()


def test_what_is_shown_has_quality_beside_every_ratio(study):
    found = json.loads((study[0] / "s.json").read_text())["study"]
    assert {x["policy"] for x in found["cells"]} == {*POLICIES, "paged:page=16"}
    assert all(x["quality"]["count"] == 2 for x in found["cells"])
    assert not any("ratio" in name for x in (*found["cells"], *found["rates"]) for name in x)


def test_times_are_medians_and_tokens_per_second_of_all_of_it():
    found = made(batch=4)
    assert (found.first, found.step) == (3.0, 0.125)
    assert found.tokens_per_second == 4 * 24 / (3 + 24 * 0.125)


def test_rows_are_checked():
    row = made().row() | {"task": "needle", "mode": "unseen", "seed": 0, "prompts": "1:ab"}
    cell.study(json.loads(json.dumps(row)))
    assert cell.of_row(json.loads(json.dumps(row))) == made()
    for change, said in (
        ({"step_seconds": []}, "step_seconds"), ({"first_seconds": [0.0]}, "first_seconds"), ({"moved_bytes": "x"}, "moved_bytes"),
        ({"peak_from": "a guess"}, "peak_from"), ({"batch": 0}, "batch"), ({"host_bytes": -1}, "host_bytes"),
    ):  # fmt: skip
        with pytest.raises(ValueError, match=said):
            cell.study(row | change)


def test_no_ratio_without_quality():
    assert compared.compared(2.0, quality=HALF, full=FULL).said == "2.00x at 50 [15, 85] of 100 [51, 100], n=4"
    for missing in ({"quality": None, "full": FULL}, {"quality": HALF, "full": None}):
        with pytest.raises(ValueError, match="no ratio without the quality of both"):
            compared.compared(2.0, **missing)
    with pytest.raises(ValueError, match="asked 4, the full cache 2"):
        compared.compared(2.0, quality=HALF, full=share([1.0, 1.0]))


def test_tables_leave_a_ratio_out_that_has_no_quality():
    cells = [made(), H2O]
    told = "\n".join([*tables.of_bytes(cells, BOTH), *tables.of_times(cells, BOTH)])
    assert "2.00x at 50 [15, 85] of 100 [51, 100]" in told and "1.20x at 50 [15, 85]" in told
    for known in ({}, HALVES, FULLS, HALVES | {("F", 1.0, 1000): {4: 1.0}}):
        untold = [*tables.of_bytes(cells, known)[3:], *tables.of_times(cells, known)[3:]]
        assert all("no ratio without the quality of both" in line for line in untold if line.startswith("| h2o"))
        assert not any("2.00x" in line or "1.20x" in line for line in untold)
    assert "no full cache" in tables.of_times([H2O], BOTH)[-1]


def test_quality_is_of_the_same_prompts_model_policy_budget_and_length():
    like = dict(model="toy", dtype="float32", prompts="1:ab")
    row = like | dict(policy_repr="H", budget=0.5, length=1000, score=1.0, task="needle", mode="unseen", seed=0, prompt=0)
    others = [row | change for change in ({"mode": "seen"}, {"seed": 1}, {"model": "m"}, {"prompts": "1:cd"}, {"task": "ppl"})]
    found = quality.of_rows([row, row | {"score": 0.0}, row | {"prompt": 5, "score": 0.0}, row | {"length": 2000}, *others], like)
    assert found == {("H", 0.5, 1000): {0: 1.0, 5: 0.0}, ("H", 0.5, 2000): {0: 1.0}}
    assert quality.of_cell(H2O, found) == share([1.0, 0.0]) and quality.of_cell(made(policy_repr="H", budget=0.25), found) is None
    both = quality.on_shared_prompts(H2O, made(), found | {("F", 1.0, 1000): {5: 1.0, 7: 1.0}})
    assert both == (share([0.0]), share([1.0])) and quality.on_shared_prompts(H2O, made(), found) == (None, None)


def test_pages_are_whole():
    """1,024 tokens are 64 pages of 16, and one more token is one more page: 16 slots of 100 bytes and 4 of its number."""
    assert paged.paged_nbytes(100, 1024, 1) == 64 * (16 * 100 + 4)
    assert paged.paged_nbytes(100, 1025, 3) == 3 * 65 * (16 * 100 + 4)
    found = paged.paged(made())
    assert (found.cache_bytes, found.peak_bytes, found.peak_from) == (64 * 1604, None, cell.NOT_RUN)
    assert (found.step, found.policy, found.policy_repr) == (made().step, "paged:page=16", "F")
    with pytest.raises(ValueError, match="pages are counted for the full cache"):
        paged.paged(H2O)


def test_one_at_a_time_a_second_request_waits():
    """Prefill 2 s, steps of 1 s, three tokens: the first is told at 2 and over at 4, the second at 6 and 8."""
    server = Server(prefill=2, step=lambda running: 1.0, new=3, at_once=1)
    assert timeline([0, 1], server) == ([2, 6], 8)
    served = serve([0, 1], server)
    assert (served.first_p50, served.tokens_per_second) == (3.5, 6 / 8)
    assert served.first_p95 == pytest.approx(2 + 0.95 * 3)


def test_prompts_come_before_steps_where_there_is_room():
    """Two at a time: both prompts are read by 4, then two steps of both, a second and a half each."""
    server = Server(prefill=2, step=lambda running: 0.5 + 0.5 * running, new=3, at_once=2)
    assert timeline([0, 1], server) == ([2, 4], 7)
    assert timeline([0, 10], server) == ([2, 12], 14)  # nobody is there between 4 and 10
    assert timeline([0.0], Server(prefill=2, step=lambda running: 9.0, new=1, at_once=1)) == ([2], 2)


def test_arrivals_are_a_seed_s_own():
    one, two = arrivals(2.0, 4000, 0), arrivals(2.0, 4000, 0)
    assert (one == two).all() and one[0] == 0 and (one[1:] > one[:-1]).all()
    assert one[-1] / 3999 == pytest.approx(0.5, rel=0.05) and (arrivals(2.0, 9, 1) != one[:9]).any()
    for wrong in ((0.0, 3), (1.0, 0)):
        with pytest.raises(ValueError, match="rate above 0"):
            arrivals(*wrong, 0)
    with pytest.raises(ValueError, match="holds a request"):
        Server(prefill=1, step=lambda running: 1.0, new=3, at_once=0)


def test_rates_take_what_was_measured():
    """Memory for four caches of the larger batch; a step's time is linear between 1 and 2, and goes on beyond."""
    cells = [made(), made(batch=2, cache_bytes=200_000, step_seconds=(0.175,)), H2O]
    found = list(rates.rates(cells, rates.Load(rates=(0.01, 10.0), memory=400_000, count=50)))
    assert [(x.cell.policy, x.rate, x.at_once, x.beyond) for x in found] == [("full", 0.01, 4, True), ("full", 10.0, 4, True)]
    slow, busy = (x.served for x in found)
    assert len(found[1].runs) == 20 and found[1].p95[0] < busy.first_p95 < found[1].p95[1], "a seed each"
    assert slow.first_p50 == 3.0 and busy.first_p95 > busy.first_p50 > 3.0 and busy.tokens_per_second > slow.tokens_per_second
    server = rates.server({1: cells[0], 2: cells[1]}, 4)
    assert [server.step(n) for n in (1, 2, 4)] == pytest.approx([0.125, 0.175, 0.275])
    assert [(x.policy, why) for x, why in rates.left_out(cells, rates.Load(rates=(1.0,), memory=400_000))] == [
        ("h2o", "was not measured alone and in a larger batch")
    ]


@pytest.mark.parametrize(
    ("change", "memory", "why"),
    [
        ({"others": 0.5}, 400_000, "was timed beside other work"),
        ({"step_seconds": (0.1,)}, 400_000, "took longer a step in a smaller batch than in a larger one"),
        ({}, 99_999, "has a cache larger than the memory"),
    ],
)
def test_what_times_cannot_say_is_not_simulated(change, memory, why):
    cells, load = [made(), made(batch=2, cache_bytes=200_000, **change)], rates.Load((1.0,), memory)
    assert not list(rates.rates(cells, load)) and rates.left_out(cells, load) == [(cells[1], why)]
    assert f"Not simulated, since it {why}: `full` at 1" in "\n".join(show.page(cells, BOTH, load))


def test_times_beside_other_work_are_not_compared():
    assert tables.faster(H2O, made(), BOTH).startswith("1.20x at 50")
    once = made(policy="h2o", policy_repr="H", budget=0.5, first_seconds=(2.0,), step_seconds=(0.125,))
    assert tables.faster(once, made(), BOTH) == "- (fewer than 3 rounds)"
    assert tables.faster(made(others=None), made(), BOTH).startswith("1.00x at 100")
    for cells in ((made(others=0.3), H2O), (made(), made(policy="h2o", policy_repr="H", budget=0.5, others=0.3))):
        assert tables.faster(cells[1], cells[0], BOTH) == "- (beside other work)"
    assert tables.smaller(made(policy_repr="H", budget=0.5, others=1.9), made(), BOTH).startswith("1.00x at 50")


def test_the_page_says_what_is_simulated_and_what_is_not_run():
    cells = [made(), made(batch=2, cache_bytes=200_000), H2O]
    told = "\n".join(show.page(cells, BOTH, rates.Load(rates=(0.01,), memory=10**6)))
    assert "## Request rates, simulated" in told and "none of it measured" in told
    assert "paged:page=16" in told and "nothing of it is run" in told and "counted rounds: 3" in told
    alone = "\n".join(show.page([made()], BOTH, rates.Load(rates=(0.01,), memory=10**6)))
    assert "requests/s" in told and "requests/s" not in alone


def test_what_does_not_fit_is_refused_before_anything_runs(cli, haystack_file, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    words = ("study", "--model", "toy", "--policies", "full", "--times-only")
    words += ("--out", tmp_path / "o.jsonl", "--text", haystack_file)
    for more, said in (
        (("--batches", "0"), "--batches: '0' is not a list of whole numbers"), (("--rates", "nan"), "--rates: 'nan' is not a list"),
        (("--lengths", 900, "--new", 500), "more than the model's 1024 positions"),
        (("--lengths", 10**6), "the haystack has"),
    ):  # fmt: skip
        code, _, err = cli(*words, *more)
        assert code == 2 and said in err, err
    assert not (tmp_path / "o.jsonl").exists() or not (tmp_path / "o.jsonl").read_text()


def test_times_measured_anew_are_of_the_file_s_model(cli, haystack_file, tmp_path):
    """Cells of another model are not put in place of those that are there."""
    row = made().row() | {"task": "needle", "mode": "unseen", "seed": 0, "prompts": "1:abc", "model": "another"}
    (tmp_path / "o.jsonl").write_text(json.dumps(row) + "\n")
    words = ("--policies", "full", "--lengths", 64, "--batches", 1, "--new", 2, "--rounds", 1, "--times-only")
    code, _, err = cli("study", "--model", "toy", *words, "--out", tmp_path / "o.jsonl", "--text", haystack_file)
    assert code == 2 and "has rows with model 'another', this sweep has 'toy'" in err, err
    assert json.loads((tmp_path / "o.jsonl").read_text()) == row


def test_other_work_is_what_this_process_did_not_do(tmp_path):
    """Processors busy for 12 s in all: idle and waiting do not count. 7 s busy, 3 of them ours, in 2 s are two cores."""
    (tmp_path / "stat").write_text("cpu 500 100 400 9000 800 50 50 100 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert other_work.busy_seconds(tmp_path / "stat") == pytest.approx(12.0)
    assert other_work.busy_seconds(tmp_path / "none") is None
    assert (other_work.other_cores(7.0, 3.0, 2.0), other_work.other_cores(2.0, 2.1, 2.0)) == (2.0, 0.0)


def test_a_cell_of_the_study_is_a_policy_s(talker):
    """The key that `missing` asks for is that of the row."""
    named = parse_policy("kivi:bits=4", None)
    plan = run.Plan((named,), (420,), (3,), 4, 1)
    found = made(policy_repr=named.policy.in_full(), budget=named.budget, length=420, batch=3, new=4)
    row = found.row() | {"task": "needle", "mode": "unseen", "seed": 0}
    assert plan.missing({tuple(row[name] for name in cell.NAMES)}) == [] and plan.missing(set()) == [(named, 420, 3)]
