"""What decoding gives: text without stop tokens, a time without compilation, one line of sizes."""

import importlib

import numpy as np
import pytest

import kvjax
from kvjax.decode.decoded import told
from kvjax.encode import Stored
from kvjax.placement import ByCallback, OnDevice, OnHost
from tests.conftest import compilations, ids_of, policy_of
from tests.experiments.conftest import byte_tokenizer

loop = importlib.import_module("kvjax.decode.loop")


@pytest.fixture(scope="module")
def spoken(lm):
    """The toy model with a token for each byte."""
    return lm.replace(tokenizer=byte_tokenizer())


@pytest.fixture(scope="module")
def out(spoken):
    policy = policy_of("snapkv", 20)
    cache = kvjax.compress(kvjax.prefill(spoken, [ids_of(40, 1), ids_of(30, 2)], needs=policy), policy)
    return kvjax.decode(spoken, cache, policy, max_new_tokens=8, stop=())


def test_text_is_that_of_each_row(spoken, out):
    assert out.text == [spoken.decode(row) for row in out.tokens]


def test_stop_tokens_are_not_in_it(spoken, out):
    """A row that stops early is filled up with its stop token, the other goes on."""
    policy, stop = policy_of("snapkv", 20), int(out.tokens[0, 3])
    cache = kvjax.compress(kvjax.prefill(spoken, [ids_of(40, 1), ids_of(30, 2)], needs=policy), policy)
    ended = kvjax.decode(spoken, cache, policy, max_new_tokens=8, stop=[stop])
    n = int(ended.lengths[0])
    assert ended.tokens[0, n - 1] == stop and n <= 4
    assert ended.text[0] == spoken.decode(ended.tokens[0, : n - 1])
    assert ended.stop == (stop,) and out.stop == ()
    silent = [t for t in ended.tokens[1, : ended.lengths[1]].tolist() if t != stop]
    assert ended.text[1] == spoken.decode(silent)


def test_the_models_own_stop_tokens_are_not_in_it(spoken, out):
    own = spoken.stop_ids[0]
    assert out.replace(tokens=np.full_like(out.tokens, own)).text == ["", ""]


def test_without_a_tokenizer_it_says_so(lm):
    policy = policy_of("full")
    out = kvjax.generate(lm, ids_of(9), policy, max_new_tokens=2)
    with pytest.raises(ValueError, match="has no tokenizer: read .tokens"):
        out.text  # noqa: B018
    assert "ms a token" in repr(out) and repr(out).startswith("Decoded(1 row, ")


def test_one_line(out):
    assert repr(out).startswith("Decoded(2 rows, 8 tokens, ") and "\n" not in repr(out) and "ms a token, '" in repr(out)
    assert repr(kvjax.Extended(cache=out.cache, logits=out.cache.logits[:, None])).endswith("logits float32[2, 1, 128])")


def test_the_time_of_a_step_is_that_of_the_loop_by_its_steps(out):
    """Two seconds of four steps are 500 ms a step, however many rows there are."""
    wanted = dict(seconds=2.0, steps=4, ms_per_token=500.0, nbytes=out.cache.nbytes, slots=out.cache.slots)
    assert told(2.0, 4, out.cache) == wanted
    assert out.info == told(out.info["seconds"], 8, out.cache)


@pytest.mark.parametrize("where", [OnDevice(), OnHost(), ByCallback()], ids=lambda where: type(where).__name__)
def test_the_time_is_of_a_loop_that_was_compiled_before(lm, monkeypatch, where):
    """The clock is read for the first time when every program is there."""
    read = []
    policy = policy_of("snapkv", 11).replace(encode=Stored(placement=where))
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(33), needs=policy), policy)
    loop._loop.clear_cache()  # a pool of this size class may have been decoded before
    with compilations() as seen:
        clock = loop.time.perf_counter
        monkeypatch.setattr(loop.time, "perf_counter", lambda: (read.append(len(seen)), clock())[1])
        kvjax.decode(lm, cache, policy, max_new_tokens=3, stop=())
    compiled = [i for i, name in enumerate(seen) if "_loop" in name]
    assert compiled and compiled[-1] < min(read), (seen, read)
