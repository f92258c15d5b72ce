"""StreamingLLM as published: positions are ranks inside the cache."""

import dataclasses

import numpy as np
import pytest

import kvjax
from kvjax.encode import Absolute, InCache
from tests import eager_positions as eager
from tests.conftest import ids_of

BUDGET, SINKS = 12, 3
POLICY = kvjax.methods.streaming_llm(BUDGET, SINKS, positions=InCache())


@pytest.fixture(scope="module")
def raw(lm, prompt):
    return kvjax.prefill(lm, prompt, needs=POLICY)


def by_rank(pos, now):
    return np.argsort(np.argsort(pos, 1), 1), (pos < now).sum(1)


def sinks_and_recent(pos, budget=BUDGET):
    """Slots [h, m] of the sinks and the last budget - sinks positions."""
    order = np.argsort(pos, 1)
    return np.concatenate([order[:, :SINKS], order[:, SINKS - budget :]], 1) if pos.shape[1] > budget else order


def simulated(lm, pre, tokens, row=0):
    n = pre.lengths[row]
    held = eager.keep(eager.raw_prompt(pre, row), sinks_and_recent(eager.raw_prompt(pre, row)[0][2]))
    return eager.run(lm, held, tokens, start=n, places=by_rank, cut=lambda layer, pos, rows: sinks_and_recent(pos))


def test_positions_stay_those_of_the_text_unless_asked():
    assert kvjax.methods.streaming_llm().encode == kvjax.encode.Stored()


def test_prompt_and_64_steps_match_the_rule_written_out(lm, raw):
    got = kvjax.decode(lm, kvjax.compress(raw, POLICY), POLICY, max_new_tokens=64, stop=(), return_logits=True)
    want = simulated(lm, raw, got.tokens[0])
    np.testing.assert_allclose(got.logits[0, 1:], want[:-1], atol=1e-5)
    for layer in range(3):
        for kept in got.cache.kept(layer)[0]:
            assert list(kept) == [0, 1, 2, *range(90 + 64 - (BUDGET - SINKS), 90 + 64)]


def test_the_two_position_policies_part_once_something_is_evicted(lm, raw):
    def logits(budget, positions):
        policy = kvjax.methods.streaming_llm(budget, SINKS, positions=positions)
        cache = kvjax.compress(raw, policy)
        return kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=(), return_logits=True).logits[:, 1:]

    assert np.abs(logits(BUDGET, InCache()) - logits(BUDGET, Absolute())).max() > 1e-3
    np.testing.assert_allclose(logits(1000, InCache()), logits(1000, Absolute()), atol=2e-5)


def test_a_row_is_as_if_alone(lm):
    prompts = [ids_of(90), ids_of(41, 1), ids_of(7, 2)]
    both = kvjax.prefill(lm, prompts, needs=POLICY)
    got = kvjax.decode(lm, kvjax.compress(both, POLICY, pool_budget=32), POLICY, max_new_tokens=12, stop=(), return_logits=True)
    for r, prompt in enumerate(prompts):
        alone = kvjax.compress(kvjax.prefill(lm, prompt, needs=POLICY), POLICY, pool_budget=32)
        want = kvjax.decode(lm, alone, POLICY, max_new_tokens=12, stop=(), return_logits=True)
        np.testing.assert_array_equal(got.tokens[r], want.tokens[0])
        np.testing.assert_allclose(got.logits[r], want.logits[0], atol=3e-5)


def test_a_text_longer_than_the_models_context(lm, prompt):
    decoder = dataclasses.replace(lm.decoder, config=dataclasses.replace(lm.decoder.config, max_positions=100))
    short = lm.replace(decoder=decoder)
    pre = kvjax.prefill(short, prompt, needs=POLICY)
    got = kvjax.decode(short, kvjax.compress(pre, POLICY), POLICY, max_new_tokens=40, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits[0, 1:], simulated(lm, pre, got.tokens[0])[:-1], atol=1e-5)
    absolute = kvjax.methods.streaming_llm(BUDGET, SINKS)
    with pytest.raises(ValueError, match="exceed the model's context of 100"):
        kvjax.decode(short, kvjax.compress(pre, absolute), absolute, max_new_tokens=40)


def test_a_cache_wider_than_the_context_is_refused(lm, prompt):
    decoder = dataclasses.replace(lm.decoder, config=dataclasses.replace(lm.decoder.config, max_positions=100))
    policy = kvjax.methods.streaming_llm(200, SINKS, positions=InCache())
    short = lm.replace(decoder=decoder)
    cache = kvjax.compress(kvjax.prefill(short, prompt, needs=policy), policy)
    with pytest.raises(ValueError, match="exceed the model's context"):
        kvjax.decode(short, cache, policy, max_new_tokens=20)


def test_what_the_prefill_must_record_is_named(lm, prompt):
    with pytest.raises(ValueError, match="Stored reads RawKeys"):
        kvjax.compress(kvjax.prefill(lm, prompt), POLICY)
