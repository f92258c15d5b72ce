"""`kvjax bench capacity`: as many requests fit as a card has bytes for, and their buffers take what was planned."""

import gc
import json
from functools import partial

import jax
import pytest
import typer
from typer.testing import CliRunner

import kvjax
from experiments.bench.model_shapes import decoder_of
from experiments.commands.capacity import capacity as command
from experiments.serving.capacity import Capacity, capacity
from tests.conftest import policy_of

NEW = 16
slow = partial(pytest.param, marks=pytest.mark.slow)
NAMES = ["full", "snapkv", "adakv", "h2o", "kivi", "streaming_llm"]
MORE = ["d2o", "hcattention", "gear", "q4_persistent", "expected_attention", "pyramidkv", "keydiff", "tova", "turboquant"]


def live() -> int:
    """Bytes of all arrays on the device."""
    gc.collect()
    return sum(x.nbytes for x in jax.live_arrays())


@pytest.mark.parametrize("name", [*NAMES, *(slow(name) for name in MORE)])
def test_requests_take_what_was_planned(name, lm, pre):
    """Weights, tables and five requests as one batch with room to decode: live buffers are within 3% of the plan."""
    policy = policy_of(name, 0.5)
    found = capacity(lm.decoder, policy, length=90, new=NEW, dtype="float32", card=1)
    one = lambda: kvjax.compress(pre, policy, headroom=policy.when.headroom(NEW, 1))  # noqa: E731
    one()  # what is made once, such as tables on the device, is there
    before = live()
    batch = kvjax.stack([one() for _ in range(5)])
    tables = sum(x.nbytes for x in jax.tree.leaves(policy) if isinstance(x, jax.Array))
    measured = live() - before + lm.nbytes + tables
    assert len(batch.lengths[0]) == 5 and found.live(5) == pytest.approx(measured, rel=0.03)
    assert 5 * found.cache == pytest.approx(live() - before, rel=0.03)


def test_as_many_requests_as_the_card_has_bytes_for():
    found = Capacity(fixed=100, prefill=50, cache=9, host=0, step=1, card=200)
    assert found.requests == 5 and found.live(5) == 145
    assert Capacity(fixed=100, prefill=101, cache=9, host=0, step=1, card=200).requests == 0


def test_a_smaller_cache_serves_more():
    decoder = decoder_of("qwen3-8b")
    of = lambda name, **how: capacity(decoder, getattr(kvjax.methods, name)(**how), length=16384, new=64, dtype="bfloat16", card=80)  # noqa: E731
    full, coded = of("full"), of("kivi")
    assert full.cache == pytest.approx(2 * 2 * 36 * 8 * 128 * 16448, rel=0.03)
    assert coded.requests > 4 * full.requests > 0
    for found in (full, coded):
        used = found.fixed + found.prefill + found.requests * (found.cache + found.step)
        assert used <= 80 * 2**30 < used + found.cache + found.step


def test_the_command_has_a_line_for_each_cell(tmp_path):
    app, file = typer.Typer(), tmp_path / "capacity.json"
    app.command()(command)
    words = "--lengths 4096 --policies full,snapkv --budgets 0.25,0.5 --card 24 --model qwen3-8b --json"
    done = CliRunner().invoke(app, [*words.split(), str(file)])
    assert done.exit_code == 0, done.output
    rows = json.loads(file.read_text())["rows"]
    assert [(row["policy"], row["budget"]) for row in rows] == [("full", 1.0), ("snapkv", 0.25), ("snapkv", 0.5)]
    assert rows[1]["requests"] > rows[2]["requests"] > rows[0]["requests"]
    assert all(f"| {row['requests']} |" in done.output for row in rows)
