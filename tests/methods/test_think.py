"""ThinK against its transcription: which channels, what attention reads for 64 steps, bytes freed; exact where none is pruned."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import KeptChannels
from kvjax.codec.layer_regions import LayerRegions
from kvjax.types import SLACK
from tests.conftest import counted_leaves, ids_of, policy_of
from tests.held import held
from tests.methods.in_tiers import positions
from tests.reference import think

HOW = dict(stop=(), return_logits=True)


def method(pruned=0.4, **changes):
    return kvjax.methods.think(pruned, **{"recent": 16, "window": 16, **changes})


@pytest.mark.parametrize("length", [1, 9, 90])
def test_channels_and_keys(lm, length):
    policy = method()
    pre = kvjax.prefill(lm, ids_of(length), needs=policy)
    cache, row = kvjax.compress(pre, policy), pre.rows[0]
    for layer, h in np.ndindex(3, 2):
        k, v = (np.asarray(x[layer])[0, h, :length] for x in (row.k, row.v))
        channels = think.kept(think.worth(np.asarray(row.evidence[layer].window_queries(16))[0, h], k), 0.4)
        np.testing.assert_array_equal(cache.parts[1].fitted[0][layer, 0, h], channels)
        order = np.argsort(positions(cache, layer, h))
        got = held(cache, policy.encode, layer, 0, h)
        np.testing.assert_array_equal(got[0][order], think.keys(k, channels, 16))
        np.testing.assert_array_equal(got[1][order], v)


def test_products_are_those_of_whole_keys_divided_by_the_root_of_their_width():
    """Two regions of 5 and 3 slots; of 8 channels 5 are stored."""
    rng, codec = np.random.default_rng(0), KeptChannels(pruned=0.4)
    k, q = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((1, 2, 8, 8), (1, 2, 3, 1, 8)))
    worth = jnp.asarray([[[1, 1, 0, 1, 0, 1, 1, 0], [0, 0, 1, 1, 1, 0, 1, 1]]], bool)
    rows = codec.encode(k, None, worth)
    pool = jnp.pad(rows[0].reshape(16, 5), ((0, SLACK), (0, 0)))
    at = LayerRegions(
        pool=pool, pos=jnp.arange(16 + SLACK, dtype=jnp.int32) % 8, start=jnp.array([[0, 8]]), length=jnp.array([[5, 3]]),
        positions=jnp.array([[20]]), padded_slots=64,
    )  # fmt: skip
    got = codec.scores(q, at, worth)
    want = np.einsum("bhgtd,bhnd->bhgtn", q, np.where(worth[:, :, None], k, 0)) / np.sqrt(8)
    for head, n in enumerate((5, 3)):
        np.testing.assert_allclose(got[0, head, :, 0, :n], want[0, head, :, 0, :n], rtol=1e-5, atol=1e-6)


def test_64_steps_read_what_the_transcription_says(lm):
    """Zeroed channels in a dense cache of the same keys: the same logits, token after token."""
    policy, full = method(), kvjax.methods.full()
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, **HOW)
    row, masks = pre.rows[0], np.asarray(kvjax.compress(pre, policy).parts[1].fitted[0])[:, 0]
    zeroed = []
    for layer, k in enumerate(row.k):
        new = np.array(k)
        new[0, :, :90] = [think.keys(new[0, h, :90], masks[layer, h], 16) for h in range(2)]
        zeroed.append(jax.numpy.asarray(new))
    dense = kvjax.compress(pre.replace(rows=(row.replace(k=tuple(zeroed)),)), full)
    want = kvjax.extend(lm, dense, out.tokens[0], full, return_logits=True)
    np.testing.assert_allclose(out.logits[0, 1:], want.logits[0, :-1], atol=5e-5)
    assert (np.asarray(out.cache.parts[0].length) == 80).all()


def test_known_tokens_come_many_at_a_time(lm, pre):
    policy, more = method(), ids_of(20, 3)
    start = kvjax.compress(pre, policy)
    whole = kvjax.extend(lm, start, more, policy, return_logits=True)
    parts = kvjax.extend(lm, start, more, policy, return_logits=True, block=1)
    np.testing.assert_allclose(whole.logits, parts.logits, atol=2e-5)


def test_with_no_channel_pruned_it_is_the_full_cache(lm, pre):
    full = kvjax.methods.full()
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=8, **HOW) for p in (method(0.0), full))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_real_bytes_are_freed(lm):
    pre = kvjax.prefill(lm, ids_of(600), needs=method())
    cache, full = kvjax.compress(pre, method(0.5)), kvjax.compress(pre, kvjax.methods.full()).numbered()
    assert cache.parts[1].k.shape[1] == 8 and cache.parts[0].k.shape[1] == 16
    assert cache.parts[1].slot_nbytes == 4 * (8 + 16) + 2
    assert cache.nbytes < 0.85 * full.nbytes
    leaves = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_after_an_eviction(lm):
    """Ragged heads, each with its newest slots whole; channels are judged by the keys that stay, as the release does."""
    policy = policy_of("adakv").replace(encode=method().encode)
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    cache, plain = kvjax.compress(pre, policy), kvjax.compress(pre, policy_of("adakv"))
    np.testing.assert_array_equal(cache.lengths, plain.lengths)
    assert (np.asarray(cache.parts[0].length) == np.minimum(plain.lengths, 16)).all()
    for layer in range(3):
        for mine, theirs in zip(cache.kept(layer)[0], plain.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(mine, theirs)
    row = pre.rows[0]
    for layer, h in np.ndindex(3, 2):
        k, q = np.asarray(row.k[layer])[0, h], np.asarray(row.evidence[layer].window_queries(16))[0, h]
        stays = np.asarray(plain.kept(layer)[0][h])
        assert len(stays) < 90
        np.testing.assert_array_equal(cache.parts[1].fitted[0][layer, 0, h], think.kept(think.worth(q, k[stays]), 0.4))
    out = kvjax.decode(lm, cache, policy, max_new_tokens=4, **HOW)
    assert np.isfinite(out.logits).all()


def test_row_is_solo(lm):
    how = dict(max_new_tokens=8, pool_budget=64, **HOW)  # one program for all that are alone
    policy, prompts = method(), [ids_of(n, seed=n) for n in (60, 1, 23)]
    batch = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy), policy, **how)
    for r, ids in enumerate(prompts):
        solo = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy), policy, **how)
        np.testing.assert_allclose(batch.logits[r], solo.logits[0], atol=3e-5)


def test_what_does_not_fit_is_refused(lm, pre):
    with pytest.raises(ValueError, match="a share of channels"):
        KeptChannels(pruned=1.0)
    with pytest.raises(ValueError, match="evicts slots one by one"):
        kvjax.compress(pre, policy_of("h2o").replace(encode=method().encode))
