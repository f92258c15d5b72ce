"""OmniKV against its NumPy transcription: what is chosen, what is read, where it is, and what crosses."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import ChannelRange, ChannelSeparable, KeptChannels
from kvjax.encode import Stored
from kvjax.placement import ByCallback, OnDevice
from kvjax.retrieve import MaskHeads, Probabilities, RawLogits
from kvjax.retrieve.filter_layers import FilterLayers
from kvjax.retrieve.token_lists import top_tokens
from kvjax.types import size_class
from tests.conftest import ids_of, policy_of
from tests.methods import reading
from tests.reference import omnikv as slow

FILTERS = (0,)


def policy(tokens=24, **changed):
    return kvjax.methods.omnikv(**{"tokens": tokens, "filters": FILTERS, "waiting": 0, **changed})


@pytest.mark.parametrize(("by", "want"), [(RawLogits(), [0, 1]), (Probabilities(), [0, 2])])
def test_the_two_readings_by_hand(by, want):
    """E24: the raw maximum over heads, and the one after each head's softmax."""
    logits = np.array([[10, 9, 0, 0], [0, 0, 2, 0]], np.float32)
    u = by(jnp.asarray(logits)[None, :, None])
    slots, count = top_tokens(u, jnp.ones((1, 4), bool), jnp.array([2]), most=3)
    assert count[0] == 2
    np.testing.assert_array_equal(slots[0, :2], want)
    np.testing.assert_array_equal(slow.chosen(logits, 2, by == Probabilities()), want)


def test_layers_of_llama_3_8b():
    few = [i for i in range(32) if FilterLayers().reads_few(i)]
    assert few == [4, 5, 6, 7, *range(10, 18), *range(20, 32)]
    assert few == [i for i in range(32) if slow.reads_few(i, (2, 8, 18), 1)]


@pytest.mark.parametrize("by", [RawLogits(), Probabilities()])
def test_steps_are_the_transcriptions(lm, pre, by):
    n, chosen = pre.lengths[0], {}

    def rule(layer, inputs, k, v):
        q = np.asarray(inputs.q, np.float64)[0, :, :, 0]
        everything = np.arange(k.shape[1])
        if layer in FILTERS:
            logits = np.einsum("hgd,hnd->hgn", q, k[:, :n]).reshape(4, n) / (4 if by == Probabilities() else 1)
            chosen["now"] = slow.chosen(logits, 24, by == Probabilities())
        few = slow.reads_few(layer, FILTERS, 0)
        read = np.concatenate([chosen["now"], everything[n:]]) if few else everything
        return reading.over_lists(q, k, v, lambda h, g: read)

    reading.same_as_written_out(lm, pre, policy(by=by), rule)


@pytest.mark.parametrize("tokens", [90, 1.0, 4096])
def test_reading_everything_is_the_full_cache(lm, pre, tokens):
    reading.reads_everything(lm, pre, policy(tokens))


def test_rows_are_what_they_are_alone(lm):
    reading.rows_are_solo(lm, policy(0.3))


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """Two of three layers' prompts, keys and values, are on the host; each step brings k tokens of them, all heads."""
    slot, n, k, steps = 2 * 16 * 4, 90, 24, 5
    cache = kvjax.compress(pre, policy(k))
    away = cache.retrieval.away
    assert [x.sharding.memory_kind for x in away.stores] == ["pinned_host"] * 2
    assert away.slot_nbytes * int(away.count.sum()) == 2 * 2 * n * slot
    assert cache.host_nbytes == size_class(2 * 2 * n) * slot
    np.testing.assert_array_equal(cache.lengths[:, 0], [[n] * 2, [0] * 2, [0] * 2])
    assert cache.used_nbytes == 2 * n * cache.slot_nbytes
    out = kvjax.decode(lm, cache, policy(k), max_new_tokens=steps, stop=())
    np.testing.assert_array_equal(out.cache.retrieval.fetched_nbytes, [steps * 2 * 2 * k * slot])
    assert out.cache.retrieval.away.stores[0] is away.stores[0] and out.cache.passed == ()
    assert (cache.held == n).all() and (out.cache.held == n + steps).all()


def test_heads_may_be_masked_on_top(lm, pre):
    """A retriever around it leaves what it holds elsewhere where it is."""
    chosen = policy()
    masked = chosen.replace(retrieve=MaskHeads(mask=np.zeros((3, 4), bool), inner=chosen.retrieve))
    want, got = (reading.decoded(lm, pre, p, 4) for p in (chosen, masked))
    np.testing.assert_array_equal(got.logits, want.logits)
    assert got.cache.host_nbytes == want.cache.host_nbytes > 0


@pytest.mark.parametrize("home", [OnDevice(), ByCallback()])
def test_homes_differ_in_nothing_else(lm, pre, home):
    want, got = (reading.decoded(lm, pre, p, 6) for p in (policy(), policy(home=home)))
    np.testing.assert_array_equal(got.logits, want.logits)
    assert (got.cache.host_nbytes == 0) == (home == OnDevice())


def test_the_rest_may_be_coded(lm, pre):
    """Codes hold the dense layers and the tokens that came later; what is on the host is as it was."""
    coded = policy().replace(encode=policy_of("hcattention").encode)
    out = reading.decoded(lm, pre, coded, 4)
    assert jnp.isfinite(out.logits).all() and out.cache.k.dtype == jnp.uint8


def test_codes_of_what_comes_later_are_fitted_on_what_is_held(pre):
    """Also in layers whose whole prompt is elsewhere."""
    for encode in (Stored(keys=KeptChannels(window=16)), Stored(keys=ChannelRange(4), values=ChannelSeparable(4))):
        full, own = (kvjax.compress(pre, p.replace(encode=encode)) for p in (kvjax.methods.full(), policy()))
        assert (own.lengths[2] == 0).all() and (own.held == 90).all()
        for one, other in zip(jax.tree.leaves(full.fitted), jax.tree.leaves(own.fitted), strict=True):
            np.testing.assert_array_equal(one, other)


def test_refusals(lm, pre):
    for wrong, why in (({"filters": (3,)}, "3 layers"), ({"filters": (1, 0)}, "ascending"), ({"tokens": 0}, "at least 1")):
        with pytest.raises(ValueError, match=why):
            kvjax.compress(pre, policy(**wrong))
    with pytest.raises(ValueError, match="leave the budget at 1.0"):
        kvjax.compress(pre, policy().replace(budget=40))
    for evicting in (policy_of("h2o", 1.0), policy_of("d2o", 1.0)):
        with pytest.raises(ValueError, match="outside the pool"):
            kvjax.compress(pre, evicting.replace(retrieve=policy().retrieve))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, kvjax.methods.full()), policy(), max_new_tokens=2)
    with pytest.raises(ValueError, match="keeps all of the prompt's keys"):
        kvjax.prefill(lm, ids_of(90), streaming=policy())
