"""`kvjax bench capacity`: as many requests fit as a card has bytes for, and their buffers take what was planned."""

import json
from functools import partial

import numpy as np
import pytest
import typer
from typer.testing import CliRunner

import kvjax
from experiments.bench.model_shapes import decoder_of
from experiments.commands.capacity import capacity as command
from experiments.serving.capacity import Capacity, Kind, capacity
from kvjax.types import SLACK
from tests.conftest import ids_of, live_bytes, policy_of

NEW, ROWS = 16, 5
slow = partial(pytest.param, marks=pytest.mark.slow)
NAMES = ["full", "snapkv", "adakv", "h2o", "kivi", "streaming_llm"]
MORE = ["d2o", "hcattention", "gear", "q4_persistent", "expected_attention", "keydiff", "tova", "turboquant"]


@pytest.mark.parametrize("name", [*NAMES, *(slow(name) for name in MORE)])
def test_requests_take_what_was_planned(name, lm, pre):
    """Five requests as one batch with room to decode: live buffers but the last logits are within 3% of the plan."""
    policy = policy_of(name, 0.5)
    found = capacity(lm.decoder, policy, length=90, new=NEW, dtype="float32", card=1)
    one = lambda: kvjax.compress(pre, policy, headroom=policy.when.headroom(NEW, 1))  # noqa: E731
    one()  # what is made once, such as programs' constants, is there
    before = live_bytes()
    batch = kvjax.stack([one() for _ in range(ROWS)])
    measured = live_bytes() - before - batch.logits.nbytes
    assert batch.lengths.shape[1] == ROWS
    assert found.cache(ROWS) + found.host_cache(ROWS) == pytest.approx(measured, rel=0.03)
    assert (found.cache(ROWS), found.host_cache(ROWS)) == (batch.nbytes, batch.host_nbytes)
    del batch


@pytest.mark.slow
@pytest.mark.parametrize("name", ["pyramidkv", "ada_expected"])
def test_uneven_regions_take_little_more(name, lm):
    """What regions of many sizes lose to alignment is no part of the plan."""
    policy, long = policy_of(name, 0.5), ids_of(900)
    found = capacity(lm.decoder, policy, length=len(long), new=NEW, dtype="float32", card=1)
    pre = kvjax.prefill(lm, long, needs=policy)
    batch = kvjax.stack([kvjax.compress(pre, policy, headroom=policy.when.headroom(NEW, 1)) for _ in range(ROWS)])
    assert found.cache(ROWS) == pytest.approx(batch.nbytes, rel=0.03)


def test_as_many_requests_as_the_card_has_bytes_for():
    """Weights take 100 bytes, a prompt 50; a request 1,024 slots of a byte, ten bytes beside them, and one for a step."""
    of = lambda card: Capacity(100, 50, Kind(1.0, 10), Kind(0.0, 0), 1, card, np.full((1, 1, 1), 1024))  # noqa: E731
    for requests in (0, 1, 3):
        assert of(0).needed(requests) == 100 + 50 + of(0).cache(requests) + requests
        assert 1034 * requests <= of(0).cache(requests) < 1.3 * 1034 * requests or requests == 0
    for requests in (1, 5, 200):
        assert of(of(0).needed(requests)).requests == requests == of(of(0).needed(requests + 1) - 1).requests
    assert of(1000).requests == 0
    assert of(10**15).requests == (2**31 - SLACK - 1) // 1024  # a pool has 32-bit indices


@pytest.mark.slow
def test_a_smaller_cache_serves_more():
    decoder = decoder_of("qwen3-8b")
    of = lambda name, **how: capacity(decoder, getattr(kvjax.methods, name)(**how), length=4096, new=64, dtype="bfloat16", card=80)  # noqa: E731
    full, coded = of("full"), of("kivi")
    assert full.cache(1) == pytest.approx(2 * 2 * 36 * 8 * 128 * 4160, rel=0.03)
    assert coded.requests > 4 * full.requests > 0
    for found in (full, coded):
        assert found.needed(found.requests) <= 80 * 2**30 < found.needed(found.requests + 1)


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
