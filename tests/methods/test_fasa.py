"""FASA against its NumPy transcription: agreement, choice, steps in both modes, bytes."""

from dataclasses import replace

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.artefacts.artefact import resolve
from kvjax.calibrate.dominant_pairs import agreement, dominant_pairs
from kvjax.placement import OnHost
from kvjax.retrieve import Dominant, HalfSplit, Interleaved
from kvjax.retrieve.token_lists import top_tokens
from kvjax.types import size_class
from tests.artefacts import toy
from tests.conftest import ids_of, policy_of
from tests.methods import reading
from tests.reference import fasa as slow

#: Three of eight pairs of each query head; the two of a KV head differ.
PAIRS = toy("fasa").tables["pairs"]
SHARED = PAIRS[:, ::2]


def policy(tokens=24, pairs=PAIRS, **changed):
    return kvjax.methods.fasa(artefact=replace(toy("fasa"), tables={"pairs": pairs}), tokens=tokens, **changed)


#: E26.
Q = np.array([1, 2, 0.5, 1, 0.3, 3], np.float32)
K = np.array([[1, 0, 1, 0.2, 1, 0], [0, 1, 0, 1.1, 0, 1], [1, 1.2, 0, 0.1, 0, -1], [0.3, 0.1, 1, 1, 1, 1]], np.float32)


@pytest.mark.parametrize(("layout", "want"), [(HalfSplit(), [0.5, 0.5, 1.0]), (Interleaved(), [0.5, 1.0, 1.0])])
def test_agreement_by_hand(layout, want):
    pairs = tuple(map(tuple, layout.channels(6).tolist()))
    np.testing.assert_allclose(slow.agreements(Q.astype(float), K.astype(float), 2, pairs), want)
    got = agreement(jnp.asarray(Q)[None, None, None], jnp.asarray(K)[None], jnp.int32(4), 2, pairs=pairs)
    np.testing.assert_array_equal(got[0, 0], np.float32(want))


def test_tokens_by_hand():
    """Pair 2 alone, channels 2 and 5, names what all channels would: tokens 1 and 3."""
    dominant = Dominant.of([[[2]]], heads=1, d=6)
    mask = dominant.mask(0, 1)[0, 0]
    np.testing.assert_array_equal(np.flatnonzero(mask), [2, 5])
    u = jnp.asarray(K @ np.where(mask, Q, 0))[None]
    np.testing.assert_array_equal(u[0], np.float32([0.5, 3, -3, 3.5]))
    np.testing.assert_array_equal(top_tokens(u, u > -9, jnp.array([2]), most=2)[0][0], [1, 3])
    np.testing.assert_array_equal(slow.tokens_read(Q, K, [2, 5], 2), [1, 3])


def test_a_kv_heads_channels_come_first_and_all_come_once():
    dominant = Dominant.of(PAIRS, heads=2, d=16)
    assert dominant.width == 8
    for h in range(2):
        order = dominant.order(0)[h]
        np.testing.assert_array_equal(np.sort(order), np.arange(16))
        mine = np.flatnonzero(dominant.mask(0, 2)[h].any(0))
        np.testing.assert_array_equal(order[:8], mine)
    assert Dominant.of(SHARED, heads=2, d=16).width == 6
    np.testing.assert_array_equal(Dominant.of(SHARED, heads=2, d=16).mask(0, 2)[:, 0], dominant.mask(0, 2)[:, 0])


def test_calibration_is_the_transcriptions(lm):
    prompts, pairs = [ids_of(40, 1), ids_of(57, 2)], HalfSplit().channels(16).tolist()
    got = dominant_pairs(lm, prompts, 3, tokens=8, queries=4)
    shared = dominant_pairs(lm, prompts, 3, tokens=8, queries=4, by_kv_head=True)
    pre = kvjax.prefill(lm, prompts, needs={kvjax.evidence.WindowQueries(4)})
    for layer in range(3):
        of_head = np.zeros((4, 8))
        for row, n in zip(pre.rows, (40, 57), strict=True):
            q, k = np.asarray(row.evidence[layer].window_queries(4))[0], np.asarray(row.k[layer])[0]
            for head in range(4):
                each = [slow.agreements(q[head // 2, head % 2, i], k[head // 2, : n - 3 + i], 8, pairs) for i in range(4)]
                of_head[head] += np.mean(each, 0) / 2
        for head in range(4):
            np.testing.assert_array_equal(got[layer, head], np.sort(np.argsort(-of_head[head].round(5), kind="stable")[:3]))
        for h in range(2):
            mean = of_head[2 * h : 2 * h + 2].mean(0)
            np.testing.assert_array_equal(shared[layer, h], np.sort(np.argsort(-mean.round(5), kind="stable")[:3]))


@pytest.mark.parametrize("home", [None, OnHost()])
def test_steps_are_the_transcriptions(lm, pre, home):
    """In place and from the host: the same tokens, those that came after the prompt among them."""
    dominant, newest = Dominant.of(PAIRS, heads=2, d=16), []

    def rule(layer, inputs, k, v):
        q, everything = np.asarray(inputs.q, np.float64)[0, :, :, 0], np.arange(k.shape[1])

        def read(h, g):
            channels = list(dominant.channels[layer][2 * h + g])
            return slow.tokens_read(q[h, g], k[h], channels, 24) if layer else everything

        newest.append(max(read(0, 0)))
        return reading.over_lists(q, k, v, read)

    reading.same_as_written_out(lm, pre, policy(home=home), rule)
    assert any(at >= 90 for at in newest)


@pytest.mark.parametrize("home", [None, OnHost()])
@pytest.mark.parametrize("tokens", [1.0, 4096])
def test_reading_everything_is_the_full_cache(lm, pre, tokens, home):
    reading.reads_everything(lm, pre, policy(tokens, home=home))


@pytest.mark.parametrize("home", [None, OnHost()])
def test_rows_are_what_they_are_alone(lm, home):
    reading.rows_are_solo(lm, policy(20, home=home))


def test_bytes_are_where_they_are_said_to_be(lm, pre):
    """Of two layers, two KV heads: 2N channels of the keys stay, the others and all values are on the host."""
    n, tip, layers, steps = 90, 6, 2, 5
    chosen = policy(pairs=SHARED, home=OnHost())
    cache, state = (made := kvjax.compress(pre, chosen)), made.retrieval
    assert [x.sharding.memory_kind for x in state.away.stores] == ["pinned_host"] * 2
    assert int(state.away.count.sum()) * state.away.slot_nbytes == layers * 2 * n * (16 - tip + 16) * 4
    assert cache.host_nbytes == size_class(layers * 2 * n) * (16 - tip + 16) * 4
    assert [x.shape[2:] for x in state.tips] == [(0, tip), (96, tip), (96, tip)]
    assert cache.used_nbytes == 2 * n * cache.slot_nbytes
    out = kvjax.decode(lm, cache, chosen, max_new_tokens=steps, stop=())
    assert 0 < out.cache.retrieval.fetched.total[0] <= steps * layers * 4 * 24
    assert out.cache.retrieval.fetched_nbytes[0] == int(out.cache.retrieval.fetched.total[0]) * 26 * 4
    in_place = kvjax.compress(pre, policy())
    assert in_place.host_nbytes == 0 and (in_place.lengths == n).all()


def test_one_token_is_one(lm, pre):
    for home in (None, OnHost()):
        state = kvjax.compress(pre, policy(1, home=home)).retrieval
        assert int(state.wanted[0]) == 1


def test_it_reads_what_another_method_kept(lm, pre):
    chosen = policy_of("adakv").replace(retrieve=policy(12).retrieve)
    assert jnp.isfinite(reading.decoded(lm, pre, chosen, 4).logits).all()


def test_refusals(lm, pre):
    with pytest.raises(ValueError, match="numbers below 8"):
        policy(pairs=PAIRS + 5)
    with pytest.raises(ValueError, match="channels of layers"):
        kvjax.compress(pre, policy(pairs=PAIRS[:2]))
    with pytest.raises(ValueError, match="leave the budget at 1.0"):
        kvjax.compress(pre, policy(home=OnHost()).replace(budget=40))
    with pytest.raises(ValueError, match="numbers on the device"):
        kvjax.compress(pre, policy().replace(encode=policy_of("hcattention").encode))
    with pytest.raises(ValueError, match="keep their place"):
        evicting = policy_of("h2o").replace(retrieve=policy().retrieve)
        kvjax.decode(lm, kvjax.compress(pre, evicting), evicting, max_new_tokens=2)


def test_the_built_in_artefact():
    """16 of 32 frequencies of each of nine query heads in thirty layers, read off the calibration split."""
    found = resolve("smollm2-135m", "fasa")
    assert found.data["split"] == "calibration" and found.tables["pairs"].shape == (30, 9, 16)
    assert (np.diff(found.tables["pairs"]) > 0).all()
    made = kvjax.methods.fasa()
    assert made.retrieve.dominant == Dominant.of(found.tables["pairs"], heads=3, d=64) and found.digest in repr(made.in_full())
