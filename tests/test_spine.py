"""One suite over every method: a new file in kvjax/methods is in it by being there.

The tests of one method run behind each other, over what the fixtures made of it once, while its programs are there.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.decode.headroom import make_room
from kvjax.decode.step import Spec, step
from kvjax.view import LayerView
from tests.conftest import compilations, counted_leaves, everything, ids_of, policy_of, prepared
from tests.method_cases import case

METHODS = kvjax.methods.names()
#: Methods whose slots are codes of several kinds; their own tests say which.
CODED = {"coupled_quantization", "gear", "kvquant", "kvtc", "q4_persistent", "qjl", "turboquant"}
POS = jnp.arange(90, dtype=jnp.int32)[None, None]
every_method = pytest.mark.parametrize("name", METHODS, scope="module")
#: Tokens decoded, and a budget whose pools all runs get: their loops are one program for a method.
NEW, ROOM = 12, 128


def test_every_file_in_methods_is_a_method():
    from pathlib import Path

    files = {p.stem for p in Path(kvjax.methods.__file__).parent.glob("*.py")} - {"__init__"}
    assert files == set(METHODS)


def compressed(pre, policy) -> kvjax.KVCache:
    return kvjax.compress(pre, policy, pool_budget=ROOM)


def decoded(lm, cache, policy) -> kvjax.Decoded:
    return kvjax.decode(lm, cache, policy, max_new_tokens=NEW, stop=(), return_logits=True, pool_budget=ROOM)


@pytest.fixture(scope="module")
def before(pre) -> list[np.ndarray]:
    """The prefill as it was before any policy read it."""
    return [np.array(x) for x in jax.tree.leaves(pre)]


@pytest.fixture(scope="module")
def own(lm, before, pre, name) -> kvjax.Prefilled:
    """The prompt with what the method reads of a second pass."""
    return prepared(lm, pre, name)


@pytest.fixture(scope="module")
def cache(own, name) -> kvjax.KVCache:
    return kvjax.compress(own, policy_of(name))


@pytest.fixture(scope="module")
def roomy(own, name) -> kvjax.KVCache:
    """As `cache`, in a pool of the size that all runs get."""
    return compressed(own, policy_of(name))


@pytest.fixture(scope="module")
def out(lm, roomy, name) -> kvjax.Decoded:
    return decoded(lm, roomy, policy_of(name))


@pytest.fixture(scope="module")
def dense(lm, before, pre) -> kvjax.Decoded:
    """What the full cache gives."""
    return decoded(lm, compressed(pre, kvjax.methods.full()), kvjax.methods.full())


def exact(name: str) -> bool:
    """Whether what is stored is what was computed: keys as they are, nothing merged into them."""
    policy = policy_of(name)
    return policy.encode == kvjax.encode.Stored() and not policy.merge.rewrites


@every_method
def test_budget_sums_exactly(cache, name):
    policy = policy_of(name)
    total, counts = (90 * 3 * 2, cache.held) if case(name).keeps_all else (40 * 3 * 2, cache.lengths)
    if not policy.select.exact:
        assert counts.sum() <= total
    elif policy.allocate.exact:
        assert counts.sum() == total
    else:
        assert total - 3 * 2 < counts.sum() <= total
    assert (counts >= 1).all()


@every_method
def test_kept_positions_ascend_and_hold_their_own_keys(own, cache, name):
    for layer in range(3):
        for h, kept in enumerate(cache.kept(layer)[0]):
            assert (np.diff(kept) > 0).all() and (kept >= 0).all() and (kept < 90).all()
            assert len(kept) == cache.lengths[layer, 0, h]
            for part in cache.parts_of(layer) or [cache]:
                at = (layer - part.first, 0, h)
                held = np.asarray(part.numbered().pos[int(part.start[at]) : int(part.start[at] + part.length[at])])
                assert (np.diff(held.astype(int)) > 0).all() and set(held) <= set(kept)
            start, length = int(cache.start[layer, 0, h]), int(cache.length[layer, 0, h])
            if not cache.parts:
                np.testing.assert_array_equal(cache.numbered().pos[start : start + length], kept)
            if exact(name):
                np.testing.assert_array_equal(cache.k[start : start + length], own.rows[0].k[layer][0, h, kept])
                np.testing.assert_array_equal(cache.v[start : start + length], own.rows[0].v[layer][0, h, kept])


@every_method
def test_protected_tokens_survive(cache, name):
    policy = policy_of(name)
    outside = (cache.held > cache.lengths)[:, 0]  # heads whose whole prompt is held, some of it outside the pool
    assert (cache.held[:, 0][outside] == 90).all()
    for layer in range(3):
        for kept in (kept for h, kept in enumerate(cache.kept(layer)[0]) if not outside[layer, h]):
            view = LayerView(k=None, v=None, pos=POS, valid=POS >= 0, length=jnp.array([90]))
            stays = policy.select.protected(view, jnp.full((1, 1), len(kept), jnp.int32))
            assert set(np.flatnonzero(stays)) <= set(kept)


@every_method
@pytest.mark.parametrize("budget", [90, 1000, 1.0])
def test_budget_at_length_is_the_full_cache_to_the_bit(lm, own, dense, name, budget):
    policy = policy_of(name, budget).replace(encode=kvjax.encode.Stored(), retrieve=kvjax.retrieve.FullAttention())
    if policy.when.decoding:  # evicting from the first token on when the budget is the prompt itself
        policy = policy.replace(when=kvjax.AfterPrefill())
    got = decoded(lm, compressed(own, policy), policy)
    np.testing.assert_array_equal(got.logits, dense.logits)
    np.testing.assert_array_equal(got.tokens, dense.tokens)


@every_method
def test_evicting_methods_with_room_to_spare_never_evict(lm, own, dense, name):
    plain = dict(encode=kvjax.encode.Stored(), retrieve=kvjax.retrieve.FullAttention())
    policy = policy_of(name, 1000).replace(**plain)
    got = decoded(lm, compressed(own, policy), policy)
    np.testing.assert_allclose(got.logits, dense.logits, atol=2e-5)
    assert (got.cache.lengths == 90 + NEW).all()


@every_method
def test_budget_of_one_slot_has_no_nan(lm, own, name):
    policy = policy_of(name, 1)
    if name == "heterocache":  # whose full heads alone take more
        with pytest.raises(ValueError, match="smallest feasible budget is 31 slots"):
            kvjax.compress(own, policy)
        return
    assert np.isfinite(decoded(lm, compressed(own, policy), policy).logits).all()


@every_method
def test_decoding_respects_the_budget(roomy, out, name):
    np.testing.assert_array_equal(out.cache.lengths, roomy.lengths + case(name).grown(policy_of(name), NEW))
    assert (out.cache.lengths <= np.asarray(out.cache.capacity)).all()
    assert int(out.cache.position[0]) == 90 + NEW


@pytest.fixture(scope="module")
def low(lm):
    """The toy model in 16 bits."""
    return lm.replace(params=jax.tree.map(lambda x: x.astype(jnp.bfloat16), lm.params))


@pytest.fixture(scope="module")
def low_pre(low, prompt):
    return kvjax.prefill(low, prompt, needs=everything())


def kinds(cache: kvjax.KVCache) -> list[np.dtype]:
    """Types of what is stored."""
    return [x.dtype for x in jax.tree.leaves([(part.k, part.v, part.tails) for part in cache.parts or [cache]])]


def assert_types_stay(cache: kvjax.KVCache, after: kvjax.KVCache) -> None:
    assert kinds(after) == kinds(cache)
    assert all(x.dtype in (jnp.float32, jnp.int32, jnp.uint32) for x in jax.tree.leaves(after.state))


@every_method
def test_keeps_dtype(low, low_pre, name):
    """Steps that no other method shares are looked at as they are traced: what they compute, a slow test runs."""
    policy = policy_of(name)
    cache = kvjax.compress(prepared(low, low_pre, name), policy)
    codes = {"hcattention": [jnp.uint8, jnp.bfloat16], "kivi": 2 * [jnp.uint32, jnp.float16, jnp.float16]}
    tails = [jnp.bfloat16, jnp.int32] * 2 if name == "kivi" else []
    if cache.parts:
        assert set(kinds(cache)) <= {jnp.dtype(x) for x in ("uint32", "uint8", "float16", "bfloat16", "int32")}
    else:
        assert name in CODED or kinds(cache) == codes.get(name, [jnp.bfloat16] * 2) + tails
    if not policy.when.decoding and exact(name) and policy.retrieve == kvjax.retrieve.FullAttention():
        assert_types_stay(cache, kvjax.decode(low, cache, policy, max_new_tokens=2, stop=()).cache)
        return
    roomy, padded_slots = make_room(cache, policy, 2)

    def traced(spec, params, cache):
        after = step(spec, params, cache, jnp.zeros(1, jnp.int32), running=jnp.ones(1, bool))
        assert_types_stay(cache, after)
        return after.logits

    assert jax.eval_shape(traced, Spec.of(low.decoder, policy, padded_slots), low.params, roomy).dtype == cache.logits.dtype


@pytest.mark.slow
@every_method
def test_decodes_in_16_bits(low, low_pre, name):
    policy = policy_of(name)
    cache = kvjax.compress(prepared(low, low_pre, name), policy)
    assert_types_stay(cache, kvjax.decode(low, cache, policy, max_new_tokens=2, stop=()).cache)


@every_method
def test_bytes_as_accounted(cache, name):
    held = counted_leaves(cache)
    on_host = [x for x in held if x.sharding.memory_kind == "pinned_host"]
    assert cache.nbytes + cache.host_nbytes == sum(x.nbytes for x in held)
    assert cache.host_nbytes == sum(x.nbytes for x in on_host)
    if cache.parts:
        assert cache.used_nbytes == sum(part.used_nbytes for part in cache.parts) <= cache.nbytes
        assert (cache.slot_nbytes - 1) * cache.lengths.sum() < cache.used_nbytes <= cache.slot_nbytes * cache.lengths.sum()
        return
    slot = [x for x in jax.tree.leaves((cache.k, cache.v, cache.pos)) if x.sharding.memory_kind == "device"]
    state = sum(x.nbytes // cache.slots for x in jax.tree.leaves(cache.state))
    position = (4 if policy_of(name).encode.positions.at_reading else 2) if policy_of(name).numbered else 0
    assert cache.slot_nbytes == sum(x.nbytes // cache.slots for x in slot) + state
    hosted = name in ("fastdecode", "heterocache", "hcattention", "neo") or (cache.held > cache.lengths).any()
    others = {"fastdecode", "hcattention", "kivi", "neo", *CODED}
    assert name in others or cache.slot_nbytes == 128 + position + state
    assert hosted == (on_host != [])
    assert cache.used_nbytes == cache.lengths.sum() * cache.slot_nbytes


@every_method
def test_compiles_once(lm, name):
    def run(seed, budget):
        policy = policy_of(name, budget)
        pre = prepared(lm, kvjax.prefill(lm, ids_of(90, seed), needs=policy), name)
        return decoded(lm, compressed(pre, policy), policy)

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
def test_prefill_for_one_policy_decides_as_a_prefill_for_all(lm, cache, prompt, name):
    policy = policy_of(name)
    alone = kvjax.compress(prepared(lm, kvjax.prefill(lm, prompt, needs=policy), name), policy)
    for layer in range(3):
        for a, b in zip(alone.kept(layer)[0], cache.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


@every_method
def test_a_saved_conversation_goes_on_as_one_that_was_not(lm, out, tmp_path, name):
    policy, cache = policy_of(name), out.cache
    again = kvjax.load_cache(kvjax.save_cache(cache, tmp_path / "talk", lm, policy), lm, policy_of(name))
    assert jax.tree.structure(cache) == jax.tree.structure(again)
    for x, y in zip(jax.tree.leaves(cache), jax.tree.leaves(again), strict=True):
        assert (x.dtype, x.shape, np.asarray(x).tobytes()) == (y.dtype, y.shape, np.asarray(y).tobytes())
        assert x.sharding.memory_kind == y.sharding.memory_kind
    one, other = (decoded(lm, c, policy) for c in (cache, again))
    np.testing.assert_array_equal(one.tokens, other.tokens)
    np.testing.assert_array_equal(one.cache.logits, other.cache.logits)


@every_method
def test_a_prefill_outlives_any_number_of_policies(pre, before, out, name):
    """Compressed and decoded from by every method up to this one."""
    for a, b in zip(before, jax.tree.leaves(pre), strict=True):
        np.testing.assert_array_equal(a, b)


@pytest.mark.parametrize("name", ["adakv", "h2o", "hcattention"])
def test_scoring_once_serves_every_budget(name, pre):
    scored = kvjax.score_prompt(pre, policy_of(name, 0.5))
    for policy in (policy_of(name, 0.25), policy_of(name, 0.5).replace(select=kvjax.select.TopK(sinks=2))):
        alone, shared = kvjax.compress(pre, policy), kvjax.compress(pre, policy, scores=scored)
        for x, y in zip(jax.tree.leaves(alone), jax.tree.leaves(shared), strict=True):
            np.testing.assert_array_equal(x, y)


def test_a_scoring_is_of_its_prompts_and_stages(lm, pre, prompt):
    scored = kvjax.score_prompt(pre, policy_of("snapkv"))
    with pytest.raises(ValueError, match="by other stages than the policy's"):
        kvjax.compress(pre, policy_of("knorm"), scores=scored)
    with pytest.raises(ValueError, match="scores are of other prompts"):
        kvjax.compress(kvjax.prefill(lm, prompt), policy_of("snapkv"), scores=scored)


@every_method
def test_a_scoring_serves_no_method_of_other_stages(name, own):
    mine = policy_of(name)
    scored = kvjax.score_prompt(own, mine)
    for other in map(policy_of, METHODS):
        same = repr((mine.score, mine.allocate)) == repr((other.score, other.allocate))
        assert scored.serves(own, other) == same, other
