"""One suite over every method: a new file in kvjax/methods is in it by being there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from tests.conftest import compilations, ids_of, policy_of

METHODS = kvjax.methods.names()
every_method = pytest.mark.parametrize("name", METHODS)


def test_every_file_in_methods_is_a_method():
    from pathlib import Path

    files = {p.stem for p in Path(kvjax.methods.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(METHODS)


@every_method
def test_budget_sums_exactly(pre, name):
    cache = kvjax.compress(pre, policy_of(name))
    mean = 90 if name == "full" else 40
    assert cache.lengths.sum() == mean * 3 * 2
    assert (cache.lengths >= 1).all()


@every_method
def test_kept_positions_ascend_and_hold_their_own_keys(pre, name):
    cache = kvjax.compress(pre, policy_of(name))
    for layer in range(3):
        for h, kept in enumerate(cache.kept(layer)[0]):
            assert (np.diff(kept) > 0).all() and kept.min() >= 0 and kept.max() < 90
            start, length = int(cache.start[layer, 0, h]), int(cache.length[layer, 0, h])
            np.testing.assert_array_equal(cache.pos[start : start + length], kept)
            np.testing.assert_array_equal(cache.k[start : start + length], pre.rows[0].k[layer][0, h, kept])
            np.testing.assert_array_equal(cache.v[start : start + length], pre.rows[0].v[layer][0, h, kept])


@every_method
def test_protected_tokens_survive(pre, name):
    policy = policy_of(name)
    cache = kvjax.compress(pre, policy)
    for layer in range(3):
        for kept in cache.kept(layer)[0]:
            recent = int(policy.select.recent) + int(policy.select.recent_share * 40)
            assert set(range(int(policy.select.sinks))) <= set(kept) and set(range(90 - recent, 90)) <= set(kept)


@every_method
@pytest.mark.parametrize("budget", [90, 1000, 1.0])
def test_budget_at_length_is_the_full_cache_to_the_bit(lm, pre, name, budget):
    policy = policy_of(name, budget)
    full = kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=(), return_logits=True)
    if policy.when.decoding:  # evicting from the first token on when the budget is the prompt itself
        cache = kvjax.compress(pre, policy.replace(when=kvjax.AfterPrefill()))
        policy = policy.replace(when=kvjax.AfterPrefill())
    else:
        cache = kvjax.compress(pre, policy)
    got = kvjax.decode(lm, cache, policy, max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_array_equal(got.logits, want.logits)
    np.testing.assert_array_equal(got.tokens, want.tokens)


@every_method
def test_evicting_methods_with_room_to_spare_never_evict(lm, pre, name):
    policy, full = policy_of(name, 1000), kvjax.methods.full()
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=4, stop=(), return_logits=True)
    got = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=4, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    assert (got.cache.lengths == 94).all()


@every_method
def test_budget_of_one_slot_has_no_nan(lm, pre, name):
    policy = policy_of(name, 1)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=3, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()


@every_method
def test_decoding_respects_the_budget(lm, pre, name):
    policy = policy_of(name)
    cache = kvjax.compress(pre, policy)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=())
    grows = 0 if policy.when.decoding else 12
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths + grows)
    assert (out.cache.lengths <= np.asarray(out.cache.capacity)).all()
    assert int(out.cache.position[0]) == 102


@every_method
def test_keeps_dtype(lm, name):
    low = lm.replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), lm.params))
    cache = kvjax.compress(kvjax.prefill(low, ids_of(70)), policy_of(name))
    assert cache.k.dtype == cache.v.dtype == jnp.bfloat16
    out = kvjax.decode(low, cache, policy_of(name), max_new_tokens=2, stop=())
    assert out.cache.k.dtype == jnp.bfloat16 and all(x.dtype == jnp.float32 for x in out.cache.stats.values())


@every_method
def test_bytes_as_accounted(pre, name):
    cache = kvjax.compress(pre, policy_of(name))
    arrays = (cache.k, cache.v, cache.pos, cache.stats, cache.start, cache.length, cache.capacity, cache.budget, cache.evidence)
    assert cache.nbytes == sum(x.nbytes for x in jax.tree.leaves(arrays))
    assert cache.host_nbytes == 0
    assert cache.slot_nbytes == 2 * 16 * 4 + 2 + 4 * len(cache.stats)
    assert cache.used_nbytes == cache.lengths.sum() * cache.slot_nbytes


@every_method
def test_compiles_once(lm, name):
    def run(seed, budget):
        policy = policy_of(name, budget)
        pre = kvjax.prefill(lm, ids_of(90, seed))
        return kvjax.decode(lm, kvjax.compress(pre, policy, reserve=64), policy, max_new_tokens=5, stop=(), reserve=64)

    run(0, 40)
    with compilations() as seen:
        run(1, 40)
    assert seen == []


@every_method
def test_a_policy_built_twice_is_one_policy(name):
    assert policy_of(name) == policy_of(name)
    assert hash(policy_of(name)) == hash(policy_of(name))
    assert jax.tree.structure(policy_of(name, 40)) == jax.tree.structure(policy_of(name, 41))


@every_method
def test_prefill_for_one_policy_decides_as_the_standard_prefill(lm, pre, prompt, name):
    policy = policy_of(name)
    own = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    for layer in range(3):
        for a, b in zip(own.kept(layer)[0], kvjax.compress(pre, policy).kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_prefill_outlives_any_number_of_policies(lm, pre):
    before = [np.asarray(x) for x in jax.tree.leaves(pre)]
    for name in METHODS:
        policy = policy_of(name)
        kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=2, stop=())
    for a, b in zip(before, jax.tree.leaves(pre), strict=True):
        np.testing.assert_array_equal(a, b)
