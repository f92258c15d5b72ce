"""Budgets shared out anew while decoding, against the rule written out token by token."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax.allocate import Adaptive, WholeLayers
from kvjax.score import KeyNorm
from kvjax.select import TopK
from kvjax.stage import Scorer
from tests.conftest import ids_of
from tests.eager import attention

BUDGET, K, SINKS, RECENT, ALPHA = 20, 3, 2, 4, 0.2


def policy_of(**when):
    """The norm of keys, Ada-KV's heads."""
    return kvjax.Policy(
        score=KeyNorm(), allocate=Adaptive(alpha=ALPHA), select=TopK(sinks=SINKS, recent=RECENT),
        when=kvjax.Every(K, reallocate=True, **when), budget=BUDGET,
    )  # fmt: skip


@struct.dataclass
class HeadFirst(Scorer):
    """Every slot of head 0 before every slot of head 1."""

    def score(self, view, evidence):
        return jnp.broadcast_to(jnp.array([1.0, 0.0])[:, None], view.pos.shape)


def ranks(norms, alive):
    """Order of keeping [h, n]: protected first, the later one before, then the smaller norm; what is gone never."""
    n = norms.shape[1]
    j = np.arange(n)
    protected = (j < SINKS) | (j >= n - RECENT)
    return np.where(alive, np.where(protected, 1e6 + j, -norms), -np.inf)


def top(worth, count):
    """The `count` largest as a mask; ties by the lower index."""
    keep = np.zeros(worth.shape, bool)
    keep[np.argsort(-worth, kind="stable")[:count]] = True
    return keep


def ada_budgets(worth):
    """Slots [h] of a layer: those of its heads among its best, each head sure of its first few."""
    safe = int(BUDGET * ALPHA)
    forced = np.stack([np.where(top(w, safe), np.inf, w) for w in worth])
    return top(forced.reshape(-1), BUDGET * len(worth)).reshape(worth.shape).sum(1)


def simulated(lm, pre, cache, tokens):
    """(logits [t, v], which positions each head of each layer holds after every token)."""
    row, n = pre.rows[0], pre.lengths[0]
    held = [[np.asarray(x)[0][:, :n] for x in pair] for pair in zip(row.k, row.v, strict=True)]
    alive = [np.stack([np.isin(np.arange(n), kept) for kept in cache.kept(layer)[0]]) for layer in range(3)]
    logits, kept = [], []
    for t, token in enumerate(tokens):
        x, at = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[n + t]], jnp.int32)
        for layer, weights in enumerate(lm.params["layers"]):

            def attend(inputs, layer=layer):
                new = np.asarray(inputs.k)[0], np.asarray(inputs.v)[0]
                held[layer] = [np.concatenate(x, 1) for x in zip(held[layer], new, strict=True)]
                alive[layer] = np.concatenate([alive[layer], np.ones((2, 1), bool)], 1)
                out = attention(np.asarray(inputs.q)[0, :, :, 0], *held[layer], seen=alive[layer][:, None])[0]
                return jnp.asarray(out[None, :, :, None], inputs.q.dtype), None

            x, _ = lm.decoder.layer(weights, x, at, attend)
        if (t + 1) % K == 0:
            for layer in range(3):
                worth = ranks(np.linalg.norm(held[layer][0], axis=-1), alive[layer])
                alive[layer] = np.stack([top(w, b) for w, b in zip(worth, ada_budgets(worth), strict=True)])
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
        kept.append([x.copy() for x in alive])
    return np.stack(logits), kept


def test_every_eviction_matches_the_rule_written_out(lm, pre):
    policy = policy_of()
    cache = kvjax.compress(pre, policy)
    got = kvjax.decode(lm, cache, policy, max_new_tokens=36, stop=(), return_logits=True)
    want, kept = simulated(lm, pre, cache, got.tokens[0])
    np.testing.assert_allclose(got.logits[0, 1:], want[:-1], atol=2e-5)
    for layer in range(3):
        for h, positions in enumerate(got.cache.kept(layer)[0]):
            np.testing.assert_array_equal(positions, np.flatnonzero(kept[-1][layer][h]))
    assert not np.array_equal(got.cache.lengths, cache.lengths)
    np.testing.assert_array_equal(got.cache.lengths, got.cache.budget)
    np.testing.assert_array_equal(got.cache.lengths.sum((1, 2)), 2 * BUDGET)


@pytest.mark.parametrize("growth", [0, 8])
def test_no_head_outgrows_its_room_and_the_total_stays_exact(lm, pre, growth):
    policy = policy_of(growth=growth)
    narrow = policy.replace(score=HeadFirst())
    cache = kvjax.compress(pre, narrow.replace(allocate=Adaptive(alpha=1.0)))
    assert (cache.lengths == BUDGET).all()
    got = kvjax.decode(lm, cache, narrow, max_new_tokens=36, stop=()).cache
    most = -(-(BUDGET + growth + K) // 8) * 8 - K
    np.testing.assert_array_equal(got.lengths, [[[most, 2 * BUDGET - most]]] * 3)
    assert (got.lengths <= np.asarray(got.capacity)).all()


def test_the_total_is_exact_after_every_eviction(lm, pre):
    policy = policy_of(growth=4)
    cache = kvjax.compress(pre, policy)
    for t in range(12):
        cache = kvjax.extend(lm, cache, ids_of(1, t), policy).cache
        assert cache.lengths.sum() == 6 * (BUDGET + (t + 1) % K)
        assert (cache.lengths <= np.asarray(cache.capacity)).all()


def test_rows_have_totals_of_their_own(lm):
    policy, prompts = policy_of(), [ids_of(90), ids_of(50, 1), ids_of(9, 2)]
    both = kvjax.prefill(lm, prompts)
    got = kvjax.decode(lm, kvjax.compress(both, policy), policy, max_new_tokens=15, stop=())
    np.testing.assert_array_equal(got.cache.lengths.sum((0, 2)), [6 * 20, 6 * 20, 6 * 20])
    for r, prompt in enumerate(prompts):
        pre = kvjax.prefill(lm, prompt)
        alone = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=15, stop=(), pool_budget=90)
        np.testing.assert_array_equal(got.tokens[r], alone.tokens[0])
        for layer in range(3):
            for a, b in zip(got.cache.kept(layer)[r], alone.cache.kept(layer)[0], strict=True):
                np.testing.assert_array_equal(a, b)


def test_blocks_of_known_tokens_evict_after_each(lm, pre):
    policy = policy_of()
    read = kvjax.extend(lm, kvjax.compress(pre, policy), ids_of(40, 3), policy, block=16).cache
    assert read.lengths.sum() == 6 * BUDGET and (read.lengths <= np.asarray(read.capacity)).all()


@struct.dataclass
class OldestOfHeadFirst(Scorer):
    """Every slot of head 0 before every slot of head 1, older ones first."""

    def score(self, view, evidence):
        return jnp.array([1.0, 0.0])[:, None] - 1e-3 * view.pos


def test_what_is_protected_follows_the_new_budgets(lm, pre):
    """Half of 20 slots are recent. Three tokens later head 0 keeps all its 23, and head 1 has 17 left, 8 of them recent."""
    policy = policy_of().replace(score=OldestOfHeadFirst(), select=TopK(recent_share=0.5))
    cache = kvjax.compress(pre, policy.replace(allocate=kvjax.allocate.Uniform()))
    assert cache.kept(0)[0][1].tolist() == [*range(10), *range(80, 90)]
    cache = kvjax.extend(lm, cache, ids_of(K, 3), policy).cache
    for layer in range(3):
        one, other = (x.tolist() for x in cache.kept(layer)[0])
        assert one == [*range(10), *range(80, 93)] and other == [*range(9), *range(85, 93)]


def test_nothing_goes_while_there_is_room_together(lm, pre):
    policy = policy_of().replace(budget=1000)
    got = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=7, stop=())
    assert (got.cache.lengths == 97).all() and (np.asarray(got.cache.budget) == 1000).all()


def test_a_merger_and_uniform_budgets_go_along(lm, pre):
    policy = policy_of().replace(merge=kvjax.methods.d2o(20).merge, allocate=kvjax.allocate.Uniform())
    got = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=9, stop=(), return_logits=True)
    assert np.isfinite(got.logits).all() and (got.cache.lengths == BUDGET).all()


def test_an_allocator_without_exact_totals_is_refused(pre):
    with pytest.raises(ValueError, match="WholeLayers cannot share out budgets anew"):
        kvjax.compress(pre, policy_of().replace(allocate=WholeLayers()))
