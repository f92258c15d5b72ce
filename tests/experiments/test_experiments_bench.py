"""Benchmarks run, carry their conditions, never run twice at once, and say so when there are no peers."""

import json
from functools import partial
from itertools import count
from types import SimpleNamespace

import jax
import numpy as np
import pytest

import kvjax
from experiments import bench
from experiments.bench import beside, decode, first_token, growth, linear, operands, prefill, restore, sparse_prefill
from experiments.bench import sweep as bench_sweep
from experiments.policies import parse_policy
from experiments.tasks import needle
from kvjax.calibrate.minference import report
from kvjax.kernels.ragged_attention.shapes import SMOLLM2_KEPT
from kvjax.prefill import AShape, CausalAttention, MInference
from tests.conftest import toy_config
from tests.experiments.conftest import TEXT


@pytest.fixture(autouse=True)
def without_peers(monkeypatch, tmp_path):
    monkeypatch.setenv("KVJAX_PEERS", str(tmp_path / "no-python"))


def test_attention_reports_times_and_bandwidth(cli, tmp_path):
    code, out, err = cli("bench", "attention", "--shapes", "smollm2 kept", "--rounds", 2, "--json", tmp_path / "a.json")
    assert code == 0, err
    result = json.loads((tmp_path / "a.json").read_text())
    assert {"machine", "commit", "dtype", "shape", "versions", "cells"} <= set(result)
    cell = result["cells"]["smollm2 kept"]
    assert cell["layers"] == 77 and cell["bytes"] == 77 * 2 * 3 * 819 * 64 * 4 > 96e6
    assert cell["seconds"]["ragged"]["count"] == 2 and set(cell["seconds"]) == {"ragged", "sum", "dense"}
    assert "no peers measured: set $KVJAX_PEERS" in result["peers"] and "no peers measured" in out
    code, _, err = cli("bench", "attention", "--shapes", "gpt-2")
    assert code == 2 and "smollm2 kept" in err


def test_sparse_prefills_are_timed_and_judged_beside_the_exact_one(cli, tmp_path):
    words = ("--model", "toy", "--context", 300, "--rounds", 1, "--text", tmp_path / "text.txt")
    (tmp_path / "text.txt").write_text(TEXT)
    code, _, err = cli("bench", "sparse-prefill", *words, "--no-fixed")
    assert code == 2 and "leaves no pattern to compare" in err, (code, err)
    code, out, err = cli("bench", "sparse-prefill", *words, "--json", tmp_path / "s.json")
    assert code == 0, err
    result = json.loads((tmp_path / "s.json").read_text())
    slash, shape = result["cells"].values()
    assert slash["tiles"] == shape["tiles"] == 1 and slash["mass"] == pytest.approx(1) and "A-shape (100, 800)" in out
    assert shape["nats of the next token"] == pytest.approx(0, abs=1e-5) and set(result["seconds"]) == {"exact", *result["cells"]}
    assert {"machine", "commit", "dtype", "shape", "versions"} <= set(result)


def test_a_pattern_that_misses_something_says_how_much(talker):
    ids, narrow = talker.encode(TEXT)[:400], MInference(AShape(8, 64))
    (cell,) = sparse_prefill.sparse_prefill(talker, ids, {"narrow": narrow}, rounds=1)["cells"].values()
    found = report(talker, ids, narrow)
    assert cell["tiles"] == found.share.mean() < 0.7 and cell["mass"] == pytest.approx(found.mass.mean()) and cell["mass"] < 0.9
    exact, sparse = (kvjax.prefill(talker, ids, attention=x).rows[0].logits for x in (CausalAttention(), narrow))
    p, q = jax.nn.log_softmax(exact), jax.nn.log_softmax(sparse)
    assert cell["nats of the next token"] == pytest.approx(float((np.exp(p) * (p - q)).sum()), rel=1e-3)


def test_attention_over_codes_is_judged_and_timed_beside_dense_attention(cli, tmp_path):
    words = ["--slots", 512, "--heads", 2, "--dimension", 64, "--groups", "1,3", "--layers", 2, "--rounds", 2]
    code, out, err = cli("bench", "quantised", *words, "--json", tmp_path / "q.json")
    assert code == 0, err
    result = json.loads((tmp_path / "q.json").read_text())
    names = {"float32", "bfloat16", "8 bits", "4 bits", "2 bits"}
    assert set(result["cells"]) == {"1 query heads a KV head", "3 query heads a KV head"} and "quantised" in out
    for cell in result["cells"].values():
        assert set(cell["ms"]) == set(cell["over bfloat16"]) == names and cell["over bfloat16"]["bfloat16"] == 1
        assert all(error < 1e-5 for error in cell["error"].values()) and len(cell["error"]) == 3
    sizes, numbers = result["memory"], 2 * 2 * 512 * 64
    wanted = {"float32": 32, "bfloat16": 16, "8 bits": 9, "4 bits": 5, "2 bits": 3}
    assert {name: round(8 * size / numbers, 1) for name, size in sizes.items()} == wanted
    code, _, err = cli("bench", "quantised", *words, "--same", "--json", tmp_path / "same.json")
    same = json.loads((tmp_path / "same.json").read_text())
    assert code == 0 and same["memory"] == sizes and "2 layers in a program, all of the same slots" in same["shape"], err
    code, _, err = cli("bench", "quantised", "--along", "head")
    assert code == 2 and "tokens or channels" in err
    code, _, err = cli("bench", "quantised", "--groups", "1,x")
    assert code == 2 and "--groups" in err


def test_restoring_is_timed_beside_a_fresh_prefill(cli, haystack_file, tmp_path):
    how = "kivi:bits=4,value_group=16,key_group=8,residual=16"
    words = ["--context", 300, "--rounds", 1, "--text", haystack_file, "--json", tmp_path / "r.json"]
    code, out, err = cli("bench", "restore", "--policy", how, *words)
    assert code == 0, err
    result = json.loads((tmp_path / "r.json").read_text())
    ways = {"fresh prefill", "saved prefill", "saved conversation"}
    assert set(result["seconds"]) == ways and all(found["count"] == 1 for found in result["seconds"].values())
    assert result["memory"]["saved conversation"] < result["memory"]["saved prefill"] and result["memory"]["cache"] > 0
    assert set(result["ratios"]) == {"fresh prefill / saved prefill", "fresh prefill / saved conversation"} and "ratio" in out


@pytest.fixture
def clocked(monkeypatch):
    """Work by a clock of its own: the first run of "a" takes 1 second, the second 2, and so on; those of "b" ten times as long."""
    now, order = [0], []

    def run(name):
        order.append(name)
        now[0] += order.count(name) * {"a": 1, "b": 10}[name]

    monkeypatch.setattr(bench, "time", SimpleNamespace(perf_counter=lambda: now[0]))
    return order, {name: partial(run, name) for name in "ab"}


def test_streaks_count_all_runs_but_their_first(clocked):
    order, work = clocked
    assert bench.interleaved(work, 3, streak=2) == {"a": [2, 3, 5], "b": [20, 30, 50]}
    assert "".join(order) == "aaabbb" * 2 and len(order) == 2 * bench.runs(3, 2)


def test_rounds_count_all_but_the_first(clocked):
    order, work = clocked
    assert bench.interleaved(work, 2) == {"a": [2, 3], "b": [20, 30]}
    assert "".join(order) == "ab" * 3 and bench.runs(2) == 3


def test_the_first_round_of_a_decode_is_not_counted(monkeypatch):
    """Two cells and the weights in three rounds, each slower than the one before: the second and the third count."""
    took = count(1)
    monkeypatch.setattr(kvjax, "decode", lambda *words, **how: SimpleNamespace(info={"ms_per_token": next(took)}))
    monkeypatch.setattr(decode, "_read", lambda params, times: 10 * next(took))
    found = decode._ours(SimpleNamespace(params={}), {"x": None, "y": None}, {"x": 0, "y": 0}, rounds=2, new=1, done=lambda n: None)
    assert found == {"x": [4, 7], "y": [5, 8], decode.WEIGHTS: [60, 90]}


def test_a_later_token_is_one_of_the_many(talker, monkeypatch):
    """The first takes 5 ms, 32 more take 8: a later one a quarter of a ms. What is timed first is not counted."""
    seen = []

    def timed(lm, pre, policy, new):
        seen.append(new)
        return (1e6, 1e6) if len(seen) <= 2 else (2.0, 5.0 if new == 1 else 5.0 + 8.0)

    monkeypatch.setattr(first_token, "_timed", timed)
    found = first_token.first_token(talker, [1, 2, 3], [parse_policy("knorm", 0.5)], rounds=2)["cells"]
    assert first_token.MANY == 33 and seen == [1, 33] * 3
    assert found == {"knorm 0.5": {"compress": 2, "first token": 5, "later token": 0.25, "beyond": 6.75}}


def test_ratios_of_decoding_are_above_one_where_kvjax_is_faster():
    """The full cache takes 4 ms, the compressed one 2, transformers 12 and 6, the weights 1."""
    ms = {decode.FULL: 4, "kvjax snapkv 0.5": 2, decode.WEIGHTS: 1, "transformers, full cache": 12, "kvpress snapkv": 6}
    found = decode._ratios({name: {"median": value} for name, value in ms.items()}, "kvjax snapkv 0.5")
    assert found == {
        f"{decode.FULL} / kvjax snapkv 0.5": 2, f"kvjax snapkv 0.5 / {decode.WEIGHTS}": 2,
        f"transformers, full cache / {decode.FULL}": 3, "kvpress snapkv / kvjax snapkv 0.5": 3,
    }  # fmt: skip


def test_ratios_of_prefilling_are_above_one_where_kvjax_is_faster(talker, monkeypatch):
    seconds = {"kvjax": [1.0, 2.0, 3.0], "kvjax, evidence for every method": [5.0, 5.0, 5.0]}
    monkeypatch.setattr(prefill, "interleaved", lambda *words, **how: seconds)
    theirs = {"missing": "some", "cells": {"torch": [{"prefill": 6.0}]}}
    monkeypatch.setattr(prefill, "peers", lambda *words, **how: theirs)
    monkeypatch.setattr(prefill, "rivals", lambda *words, **how: {"missing": "none"})
    found = prefill.prefill(talker, [1, 2, 3], rounds=3)
    assert found["ratios"] == {"kvjax, evidence for every method / kvjax": 2.5, "torch / kvjax": 3}


def test_ratios_of_restoring_are_above_one_where_it_is_faster_than_a_prefill(talker, monkeypatch):
    seconds = {"fresh prefill": [6.0], "saved prefill": [3.0], "saved conversation": [2.0]}
    monkeypatch.setattr(restore, "interleaved", lambda *words, **how: seconds)
    found = restore.restore(talker, list(range(40)), kvjax.methods.snapkv(budget=20, window=8), rounds=1)
    assert found["ratios"] == {"fresh prefill / saved prefill": 2, "fresh prefill / saved conversation": 3}


def test_the_time_of_a_grid_is_told_from_a_few_prompts():
    """Ours: 100 s with compilation, then 10 each, of 31 prompts: 400. Kvpress: 4 cells of 15 s a prompt, 60, of 31: 1860."""
    hours, ratios = bench_sweep._compared({"needle": [100.0, 10.0, 10.0, 70.0]}, {"needle": [10.0, 20.0]}, 4, 31)
    assert hours == pytest.approx({"kvjax": 400 / 3600, "kvpress": 1860 / 3600})
    assert ratios == pytest.approx({
        "kvpress / kvjax, a further needle prompt": 6, "kvpress / kvjax, 31 prompts a task with compilation": 4.65,
    })  # fmt: skip


def test_our_kernel_over_everything_is_dense_attention():
    made = operands.regions(SMOLLM2_KEPT, "float32")
    ours, _ = made.ours(*made.pool, None)
    np.testing.assert_allclose(ours, made.dense(*made.whole), atol=2e-6)


def test_linear_reads_every_weight(talker):
    result = linear.linear(talker, [1, 3], 2, impls=["native", "xla"])
    assert str(sum(x.nbytes for x in jax.tree.leaves(talker.params) if x.ndim == 2)) in result["shape"]
    assert {rows: set(cell["seconds"]) for rows, cell in result["cells"].items()} == dict.fromkeys("13", {"native", "xla", "sum"})
    assert all(cell["share_of_plain_sum"]["native"] > 0 for cell in result["cells"].values())


def test_growth_fits_a_line():
    slope, intercept, determined = growth.line(np.array([1, 2, 3, 4]), np.array([5.0, 7.0, 9.0, 11.0]))
    np.testing.assert_allclose((slope, intercept, determined), (2, 3, 1), rtol=1e-9)
    assert growth.line(np.array([1, 2, 3, 4]), np.array([1.0, -1.0, 1.0, -1.0]))[2] < 0.5


@pytest.mark.slow
def test_growth_times_the_same_slots_equal_and_skewed():
    result = growth.growth("float32", 1)
    assert set(result["cells"]) == {"equal", "32:1"} and set(result["cells"]["32:1"]) == set(growth.USED)
    assert len(result["ratios"]) == len(growth.USED) and result["fit"]["ms_per_1000_slots"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("command", [["scores"], ["gather"], ["gpu", "--kernels", "ragged,gather", "--dtype", "float32"]])
def test_kernels_are_judged_before_they_are_timed(cli, tmp_path, command):
    words = ["--impl", "xla", "--small", "--rounds", 1, "--json", tmp_path / "g.json"]
    words += [] if command[0] == "gpu" else ["--shapes", "smollm2-135m, 8k"]
    code, out, err = cli("bench", *command, *words)
    assert code == 0, err
    cells = json.loads((tmp_path / "g.json").read_text())["cells"]
    assert cells and all(cell["right"] and cell["error"] <= 2e-6 for cell in cells.values())
    assert command[0] == "gpu" or all("smollm2-135m, 8k" in name for name in cells)


def test_gpu_kernels_need_a_gpu(cli):
    code, _, err = cli("bench", "gpu", "--impl", "triton", "--small", "--rounds", 1)
    assert code == 2 and "needs an NVIDIA GPU" in err


def test_a_step_is_compiled_and_then_read_from_the_persistent_cache(cli, tmp_path):
    (tmp_path / "config.json").write_text(json.dumps(toy_config()))
    folder = jax.config.jax_compilation_cache_dir
    code, out, err = cli("bench", "compile", "--model", tmp_path, "--length", 60, "--budget", "0.5", "--json", tmp_path / "c.json")
    assert code == 0, err
    result = json.loads((tmp_path / "c.json").read_text())
    assert set(result["compile_seconds"]) == {"trace and lower", "compile", "trace and lower, again", "compile, again"}
    first, second = result["cache_entries"]
    assert first == second > 0 and jax.config.jax_compilation_cache_dir == folder and "compile_seconds" in out


@pytest.mark.slow
def test_the_first_token_is_timed_beside_a_later_one(cli, tmp_path, haystack_file):
    words = ("--model", "toy", "--context", 100, "--rounds", 2, "--policies", "snapkv,kvzip", "--budgets", "0.5")
    code, out, err = cli("bench", "first-token", *words, "--text", haystack_file, "--json", tmp_path / "f.json")
    assert code == 0, err
    cells = json.loads((tmp_path / "f.json").read_text())["cells"]
    assert set(cells) == {"snapkv 0.5", "kvzip 0.5"} and "snapkv 0.5" in out
    for cell in cells.values():
        assert cell["beyond"] == pytest.approx(cell["compress"] + cell["first token"] - cell["later token"], abs=0.02)


@pytest.mark.slow
def test_decode_and_prefill_say_that_there_are_no_peers(cli, tmp_path, haystack_file):
    words = ["--model", "toy", "--context", 100, "--rounds", 1, "--text", haystack_file, "--json", tmp_path / "d.json"]
    for name in ("decode", "prefill"):
        code, out, err = cli("bench", name, *words)
        assert code == 0, err
        result = json.loads((tmp_path / "d.json").read_text())
        assert "no peers measured" in result["peers"] and "no peers measured" in out and result["ratios"]


@pytest.mark.slow
def test_sweep_times_every_prompt(talker):
    from experiments.commands.tasks import TASKS
    from tests.experiments.conftest import TEXT

    found = {"needle": list(needle.examples(talker, 420, 2, 0, haystack=talker.encode(TEXT), mode="unseen"))}
    cells = [parse_policy("keydiff", 0.5), parse_policy("knorm", 0.25)]
    result = bench_sweep.sweep(talker, found, TASKS, cells=cells, beside=cells[:1], whole=30)
    assert len(result["kvjax_seconds_by_prompt"]["needle"]) == 2 and "no peers" in result["peers"]


def test_one_benchmark_at_a_time():
    with bench.alone(), pytest.raises(OSError, match="another benchmark is running"), bench.alone():
        pass


def test_every_press_is_a_method_of_ours():
    assert set(beside.PRESSES) <= set(kvjax.methods.names())


@pytest.mark.slow
def test_overlap_times_what_is_begun_ahead_and_what_is_not(cli, tmp_path):
    words = ["--width", 64, "--context", 96, "--slow", 5, "--new", 4, "--rounds", 1]
    code, out, err = cli("bench", "overlap", *words, "--json", tmp_path / "o.json")
    assert code == 0, err
    found = json.loads((tmp_path / "o.json").read_text())
    cells = ("fast", "slow, begun ahead", "slow, read when waited for")
    assert set(found["ms_per_token"]) == {f"{name}, {cell}" for name in ("heterocache", "infinigen") for cell in cells}
    assert "readings 5 ms longer" in found["shape"] and found["ratios"]["infinigen, fast"] == 1
    assert found["ms_per_token"]["infinigen, slow, read when waited for"]["min"] > 5  # what every step waits for at least
