"""Benchmarks run, carry their conditions, never run twice at once, and say so when there are no peers."""

import json

import pytest

import kvjax
from experiments import bench
from experiments.bench import beside
from experiments.policies import parse_policy
from experiments.tasks import needle


@pytest.fixture(autouse=True)
def without_peers(monkeypatch, tmp_path):
    monkeypatch.setenv("KVJAX_PEERS", str(tmp_path / "no-python"))


def test_attention_reports_times_and_bandwidth(cli, tmp_path):
    code, out, err = cli("bench", "attention", "--shape", "smollm2 kept", "--rounds", 2, "--json", tmp_path / "a.json")
    assert code == 0, err
    result = json.loads((tmp_path / "a.json").read_text())
    assert {"machine", "commit", "dtype", "shape", "versions", "ratios"} <= set(result)
    assert result["bytes"] == 8 * 2 * 3 * 819 * 64 * 4 and result["seconds"]["ragged"]["count"] == 2


@pytest.mark.slow
def test_kernels_are_judged_before_they_are_timed(cli, tmp_path):
    words = ["--impl", "xla", "--kernels", "ragged,gather", "--small", "--rounds", 1, "--dtype", "float32"]
    code, out, err = cli("bench", "gpu", *words, "--json", tmp_path / "g.json")
    assert code == 0, err
    cells = json.loads((tmp_path / "g.json").read_text())["cells"]
    assert cells and all(cell["right"] and cell["error"] <= 2e-6 for cell in cells.values())
    code, _, err = cli("bench", "gpu", "--impl", "triton", "--small", "--rounds", 1)
    assert code == 2 and "needs an NVIDIA GPU" in err


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
    from experiments.bench.sweep import sweep
    from experiments.commands.tasks import TASKS
    from tests.experiments.conftest import TEXT

    found = {"needle": list(needle.examples(talker, 420, 2, 0, haystack=talker.encode(TEXT), mode="unseen"))}
    cells = [parse_policy("keydiff", 0.5), parse_policy("knorm", 0.25)]
    result = sweep(talker, found, TASKS, cells=cells, beside=cells[:1], whole=30)
    assert len(result["kvjax_seconds_by_prompt"]["needle"]) == 2 and "no peers" in result["peers"]


def test_one_benchmark_at_a_time():
    with bench.alone(), pytest.raises(OSError, match="another benchmark is running"), bench.alone():
        pass


def test_every_press_is_a_method_of_ours():
    assert set(beside.PRESSES) <= set(kvjax.methods.names())
