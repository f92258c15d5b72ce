"""What a user may type or hand in by mistake: each is one line that says what was expected, and a code."""

import json
import os
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

import kvjax
import models
from experiments import lm_eval_table, traces
from experiments.console import complain
from experiments.markdown_table import escaped, table
from experiments.policies import parse_budget, parse_policy, split_specs
from experiments.row_checks import cell, result, trace
from experiments.rows import RowFile, read
from experiments.study.cell import study
from tests.experiments.conftest import row

ROOT = Path(__file__).parents[2]
GENERATE = ["generate", "--model", "toy", "--prompt", "abc"]
SWEEP = ["sweep", "--model", "toy", "--policies", "keydiff", "--budgets", "40", "--lengths", "420", "--prompts", 1]


def one_line(err):
    """The complaint on stderr; what was under way may be shown before it."""
    last = err.strip().split("\n")[-1]
    assert last.startswith("error: ") and err.count("error:") == 1 and "Traceback" not in err
    return last


@pytest.mark.parametrize(
    "spec, said",
    [
        ("snapkv:window=-1", "window: expected a whole number from 0 to 1048576, got '-1'"),
        ("snapkv:window=abc", "window: expected a whole number from 0 to 1048576, got 'abc'"),
        ("snapkv:window=1.5", "window: expected a whole number"),
        ("snapkv:window=True", "window: expected a whole number"),
        ("snapkv:window=99999999", "window: expected a whole number"),
        ("snapkv:pool=None", "pool is a stage, which has no name on the command line"),
        ("adakv:alpha=nan", "alpha: expected a number from 0 on, got 'nan'"),
        ("adakv:alpha=-1", "alpha: expected a number from 0 on"),
        ("adakv:alpha=1e300", "alpha: expected a number from 0 on"),
        ("tova:protect_last=1", "protect_last: expected True or False, got '1'"),
        ("d2o:ratio=3", "ratio: expected two numbers such as (3, 1), got '3'"),
        ("quest:token_budget=1.5", "token_budget: expected a whole number up to 1048576, or a share in (0, 1]"),
        ("snapkv:window=" + "(" * 10_000, "window: expected a whole number"),
    ],
)
def test_values_of_policies(spec, said):
    with pytest.raises(ValueError) as error:
        parse_policy(spec, 0.5)
    assert said in str(error.value) and str(error.value).startswith("policy ") and len(str(error.value)) < 200


def test_values_of_every_kind():
    assert parse_policy("d2o:ratio=(1, 1),sinks=2", 0.5).policy == kvjax.methods.d2o(budget=0.5, ratio=(1, 1), sinks=2)
    assert parse_policy("tova:protect_last=True", 9).policy == kvjax.methods.tova(budget=9, protect_last=True)
    assert parse_policy("quest:token_budget=0.5,page_size=8", 9).policy == kvjax.methods.quest(token_budget=0.5, page_size=8)
    assert parse_policy("hcattention:artefact=None", 9).policy == kvjax.methods.hcattention(artefact=None)
    assert split_specs("d2o:ratio=(1,1),sinks=2,tova") == ["d2o:ratio=(1,1),sinks=2", "tova"]


@pytest.mark.parametrize("text", ["1" + "0" * 23, str(2**31), "1e23", "9" * 5000])
def test_budgets_beyond_any_cache(text):
    with pytest.raises(ValueError, match="^budget ") as error:
        parse_budget(text)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize(
    "argv",
    [["generate", "--model", "toy", "--prompt", "x"], ["show", "--model", "toy", "--prompt", "x", "--out", "p.html"],
     ["bench", "plan", "--length", "64"], ["lm-eval", "--model", "toy", "--tasks", "arc_easy"]],
)  # fmt: skip
def test_a_method_with_a_budget_asks_for_one(cli, argv):
    code, _, err = cli(*argv, "--policy", "snapkv")
    assert code == 2 and "policy 'snapkv' needs a --budget: slots per KV head (256) or the share" in one_line(err)
    assert "for example --policy snapkv --budget 0.25" in one_line(err)


def test_the_full_cache_needs_none(cli):
    assert cli("bench", "plan", "--length", 64)[0] == 0


@pytest.mark.parametrize(
    "argv, said",
    [
        ([*GENERATE, "--seed", "1" + "0" * 30], "--seed"),
        ([*GENERATE, "--seed", "-1"], "--seed"),
        ([*GENERATE, "--top-k", 2**40, "--temperature", "1"], "--top-k"),
        ([*SWEEP, "--out", "x", "--seed", "1" + "0" * 30], "below 2^32, such as 0,1"),
        ([*SWEEP, "--out", "x", "--seed", "9" * 5000], "below 2^32, such as 0,1"),
        ([*SWEEP, "--out", "x", "--lengths", "1" + "0" * 30], "is not a positive number of tokens below 2^31"),
        ([*SWEEP, "--out", "x", "--prompts", 10**12], "--prompts"),
        (["generate", "--model", "toy", "--prompt", "a\ud800"], "half of a surrogate pair ('\\ud800') at character 1: remove it"),
        (["generate", "--model", "toy", "--prompt", "a", "--policy", "\ud800"], "unknown policy '\\ud800'"),
        (["generate", "--model", "toy", "--prompt-file", "/dev/zero"], "/dev/zero is no regular file and gives more than"),
        ([*GENERATE, "--top-p", 2], "--top-k and --top-p are for sampling, and at temperature 0 nothing is drawn"),
        ([*GENERATE, "--top-k", 5], "give --temperature above 0"),
        ([*GENERATE, "--top-p", 2, "--temperature", 1], "top_p"),
        ([*GENERATE, "--policy", "kivi", "--budget", "0.5"], "policy 'kivi' takes no budget, got --budget '0.5': leave it out"),
        (["bench", "plan", "--length", "64", "--policy", "full", "--budget", "9"], "policy 'full' takes no budget"),
        (["bench", "decode", "--policy", "kivi:bits=4", "--budget", "0.5"], "policy 'kivi:bits=4' takes no budget"),
        (["show", "--model", "toy", "--prompt", "a", "--out", "x", "--policy", "kivi", "--budget", "9"], "'kivi' takes no budget"),
        ([*SWEEP, "--out", "x", "--dry-run", "--slurm", "a=b"], "--slurm is for --executor slurm; here it is local"),
        ([*SWEEP, "--out", "x", "--dry-run", "--heads", 2, "--workers", 2], "--heads 2 is for a sweep in this process"),
        (["train", "trim_kv", "--model", "toy", "--out", "x", "--data", "recall", "--text", "x"], "read no text: leave it out"),
        (["report", "/dev/zero", "--out", "x"], "/dev/zero is no regular file and gives more than"),
        ([*SWEEP, "--out", "x", "--text", "/dev/zero"], "/dev/zero is no regular file and gives more than"),
    ],
)
def test_bad_words(cli, argv, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, _, err = cli(*argv)
    assert code == 2 and said in one_line(err)


@pytest.mark.parametrize("path, why", [("no/x.json", "there is no folder no"), (".", "a folder"), ("/dev/null/x", "no folder")])
@pytest.mark.parametrize("argv", [GENERATE, [*SWEEP, "--out", "x"], ["methods"], ["report", "rows.jsonl", "--out", "x"]], ids=str)
def test_a_json_file_that_cannot_be_written_is_refused_before_the_work(cli, argv, path, why, tmp_path, monkeypatch):
    """Before the model is loaded: nothing else is said."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(models, "load", None)
    code, out, err = cli(*argv, "--json", path)
    assert code == 2 and one_line(err) == err.strip() and f"cannot write {path}: " in err and why in err and not out
    assert not list(tmp_path.iterdir())


def test_complaints_hold_nothing_that_a_terminal_obeys(capsys):
    assert complain("a\nb \x1b[31m \ud800 [bold]", 2) == 2
    assert capsys.readouterr().err == "error: a b \\x1b[31m \\ud800 [bold]\n"


def test_the_version(cli):
    code, out, _ = cli("--version")
    assert code == 0 and out == f"kvjax {metadata.version('kvjax')}\n"


def test_out_of_memory_is_one_line(cli, monkeypatch):
    def fail(*args, **kwargs):
        raise MemoryError("cannot have 3 TB")

    monkeypatch.setattr(kvjax, "prefill", fail)
    code, _, err = cli(*GENERATE)
    assert code == 1 and "out of memory (cannot have 3 TB): ask for a shorter context" in one_line(err)


def without(name, **changes):
    made = row(**changes)
    del made[name]
    return made


BROKEN = [
    (without("score"), "expected a score or nll"), (row(nll=1.0), "expected a score or nll .one of them., got score and nll"),
    (row(score="1.0"), "score: expected a finite number, got '1.0'"), (row(score=None), "score: expected a finite number"),
    (row(score=float("nan")), "score: expected a finite number"), (row(score=True), "score: expected a finite number"),
    (without("score", nll="x"), "nll: expected a finite number"), (without("policy"), "policy: expected text, got nothing"),
    (row(policy=["snapkv"]), "policy: expected text"), (row(length="64"), "length: expected a whole number"),
    (row(budget=[1]), "budget: expected a finite number"), (row(budget=0), "budget: expected a number above 0"),
    (row(kept_share=None), "kept_share: expected a finite number"), (row(model="\ud800"), "model: expected text"),
    (row(versions=3), "versions: expected an object of texts"), (row(prompts="1"), "prompts: expected VERSION:DIGEST"),
    ([1], "expected an object"), (3, "expected an object"),
]  # fmt: skip


@pytest.mark.parametrize("made, said", BROKEN)
def test_rows_that_are_no_results(made, said, cli, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n" + json.dumps(made) + "\n")
    before = path.read_bytes()
    with pytest.raises(ValueError, match=f"rows.jsonl line 2 is not a result row of kvjax .{said}.*: remove the line"):
        RowFile(path, row())
    assert path.read_bytes() == before
    code, _, err = cli("report", path, "--out", tmp_path / "out")
    assert code == 2 and "line 2 is not a result row" in one_line(err)


def test_rows_nested_too_deep(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text("[" * 100_000 + "\n")
    with pytest.raises(ValueError, match="line 1 is not a result row"):
        read(path)


@pytest.mark.parametrize(
    "name, value",
    [("tokens", 0), ("lengths", []), ("lengths", [[1], [1, 2]]), ("retention", [["x"]]), ("drift", {"theta": "x"}), ("drift", 3),
     ("drift", {"theta": 0.5, "w": 4, "first": 0, "pivots": [[0]], "medians": [[0.5]], "refreshes": []})],
)  # fmt: skip
def test_traces_that_are_none(name, value):
    with pytest.raises(ValueError, match="expected"):
        trace({**row(), "tokens": 8, "lengths": [[4]], "retention": [[0.5]], name: value})


def test_committed_results_are_results():
    others = {"peer_scores.jsonl": cell, "study.jsonl": study}
    for path in (ROOT / "experiments" / "results").rglob("*.jsonl"):
        assert read(path, others.get(path.name, trace if ".traces." in path.name else result)), path


def test_a_task_has_scores_or_nats_but_not_both(cli, tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(row()) + "\n" + json.dumps(without("score", nll=1.0, prompt=1)) + "\n")
    code, _, err = cli("report", path, "--out", tmp_path / "out")
    assert code == 2 and "'needle unseen' has rows with a score and rows with nats" in one_line(err)


ODD = [("versions", 3), ("shape", None), ("ms_per_token", [1]), ("ratios", 3), ("cells", {"a": 3})]


@pytest.mark.parametrize("field, value", ODD)
def test_benchmarks_that_are_none(cli, tmp_path, field, value):
    made = json.loads((ROOT / "experiments/results/decode_8k.json").read_text()) | {field: value}
    (tmp_path / "bench.json").write_text(json.dumps(made))
    code, _, err = cli("report", tmp_path / "bench.json", "--out", tmp_path / "out")
    assert code == 2 and "bench.json is no result of `kvjax bench` (" in one_line(err)


def test_names_cannot_break_a_table(cli, tmp_path):
    name = "a|b\nc `d` *e* <f> [g](h) $\\frac{"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row(prompt=i, policy=name, model="my_model|x")) + "\n" for i in range(2)))
    code, out, err = cli("report", path, "--out", tmp_path)
    assert code == 0, err
    text = (tmp_path / "table.md").read_text()
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert len(lines) == 3 and "a\\|b c \\`d\\` \\*e\\* \\<f\\> [g\\](h) $\\\\frac{" in lines[2]
    assert {line.replace("\\|", "").count("|") for line in lines} == {8} and "**my_model\\|x (float32)" in text


def test_words_with_underscores_stay_as_they_are():
    assert escaped("streaming_llm 100 [51, 100] n=4") == "streaming_llm 100 [51, 100] n=4"
    assert escaped("_a_ b_") == "\\_a\\_ b\\_"
    assert table(["a", "b"], [["x", "1"]], texts=1) == ["| a | b |", "| --- | --: |", "| x | 1 |"]


def test_lm_evals_results_have_headers():
    metrics = {"alias": "colours", "acc,none": 0.5, "acc_stderr,none": 0.25, "f1,none": float("nan"), "sample_len": 2}
    found = {"results": {"colours": metrics}, "versions": {"colours": 1}, "n-shot": {"colours": 0}}
    assert lm_eval_table.markdown(found).splitlines() == [
        "| task | version | filter | shots | metric | value | standard error |",
        "| --- | --- | --- | --- | --- | --: | --: |",
        "| colours | 1 | none | 0 | acc | 0.5000 | 0.2500 |",
        "| colours | 1 | none | 0 | f1 | nan | - |",
    ]


GIT = """
import lm_eval.evaluator
from experiments.commands.lm_eval import _commit_without_git
with _commit_without_git(lm_eval):
    print(lm_eval.evaluator.get_git_commit_hash())
"""


def test_nothing_is_said_of_git_outside_a_checkout(tmp_path):
    pytest.importorskip("lm_eval", reason="lm-eval is not installed: the extra `lm-eval`")
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", GIT], cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True, text=True, timeout=300,
    )  # fmt: skip
    assert done.returncode == 0 and "fatal" not in done.stderr and done.stdout.strip()


def test_a_sweep_into_nowhere(cli, haystack_file):
    code, out, err = cli(*SWEEP, "--text", haystack_file, "--out", "/dev/null")
    assert code == 0, err
    assert "4 rows measured, 0 found, in /dev/null" in out


def test_two_files_on_one_device():
    assert str(traces.beside("/dev/null")) == "/dev/null"
    with RowFile("/dev/null", row()) as rows, RowFile("/dev/null", row(), trace) as traced:
        rows.append(row())
        assert len(rows) == 1 and len(traced) == 0
