"""Position policies: which rotary positions stored keys and queries have at every reading."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.attend_context import AttendContext
from kvjax.cache.kv_cache import SlotState
from kvjax.encode import Absolute, Cast, Clamped, InCache, Rerotated, Stored, Tiered, Unrotated
from kvjax.tiers import ImportantFirst, RecentFirst
from models import rope
from models.rope import Rope
from tests import eager_positions as eager
from tests.conftest import ids_of
from tests.reference import golden_presses as golden
from tests.reference.rerotation import rerotate
from tests.reference.rotary import frequencies, rotate

E1_IN_CACHE, E1_TRUE = [-0.4161, 0.0707, 0.5403, 0.8776, 1.0], [-0.9365, -0.9900, 0.5403, 0.8776, 1.0]


def one_region(pos, k) -> kvjax.KVCache:
    """A cache of one layer, row and head whose slots hold `k` at `pos`."""
    n, pad = len(pos), 512
    rows = jnp.zeros((pad, k.shape[1]), jnp.float32).at[:n].set(k)
    whole = jnp.full((1, 1, 1), n, jnp.int32)
    return kvjax.KVCache(
        k=rows, v=rows, pos=jnp.zeros(pad, jnp.int32).at[:n].set(jnp.asarray(pos)), state=SlotState(), start=0 * whole,
        length=whole, capacity=whole, budget=whole, position=whole[0, 0], steps=whole[0, 0], logits=jnp.zeros((1, 1)),
        made_by=jnp.zeros(1, jnp.uint32),
    )  # fmt: skip


def scores_of(encode, pos, k, q, now, *, turn, window=None):
    """Unscaled scores of queries [t, d] at positions `now` [t] over one region."""
    context = AttendContext(
        layer=0, positions=jnp.asarray(now, jnp.int32)[None], window=window, padded_slots=64, encode=encode, rope=turn
    )
    z = encode.scores(jnp.asarray(q, jnp.float32)[None, None, None], one_region(pos, k), context)
    return np.asarray(z)[0, 0, 0, :, : len(pos)] * np.sqrt(k.shape[1])


def test_e1_logits_in_the_cache_and_in_the_text():
    pos, x, turn = np.array([0, 1, 5, 6, 7]), np.tile([[1.0, 0.0]], (5, 1)), Rope((0.5,))
    got = scores_of(Stored(positions=InCache()), pos, x, x[:1], [7], turn=turn)
    np.testing.assert_allclose(got[0], E1_IN_CACHE, atol=5e-5)
    omega = np.array([0.5])
    got = scores_of(Stored(), pos, rotate(x, pos, omega), rotate(x[:1], np.array([7]), omega), [7], turn=turn)
    np.testing.assert_allclose(got[0], E1_TRUE, atol=5e-5)


@pytest.mark.parametrize("window", [None, 3])
def test_ranks_follow_the_text_in_whatever_order_slots_lie(window):
    """Several queries of one step, each with its own rank; a sliding window counts ranks."""
    rng, turn = np.random.default_rng(0), rope.plain(100.0, 8)
    k, q, pos = rng.normal(size=(7, 8)), rng.normal(size=(3, 8)), np.array([40, 3, 0, 41, 17, 42, 9])
    omega, ranks, now = np.asarray(turn.frequencies), np.array([4, 1, 0, 5, 3, 6, 2]), np.array([4, 5, 6])
    want = rotate(q, now, omega) @ rotate(k, ranks, omega).T
    seen = ranks <= now[:, None]
    if window:
        seen &= ranks > now[:, None] - window
    got = scores_of(Stored(positions=InCache()), pos, k, q, [40, 41, 42], turn=turn, window=window)
    np.testing.assert_allclose(got, np.where(seen, want, -np.inf), atol=1e-5)


def test_far_keys_all_stand_at_the_limit():
    rng, turn = np.random.default_rng(1), rope.plain(100.0, 8)
    k, q, pos = rng.normal(size=(5, 8)), rng.normal(size=(1, 8)), np.array([0, 50, 94, 97, 100])
    omega = np.asarray(turn.frequencies)
    want = [q[0] @ rotate(k[j : j + 1], np.array([-min(100 - pos[j], 6)]), omega)[0] for j in range(5)]
    np.testing.assert_allclose(scores_of(Stored(positions=Clamped(6)), pos, k, q, [100], turn=turn)[0], want, atol=1e-5)


def adakv(positions):
    return kvjax.methods.adakv(20, window=4).replace(encode=Stored(positions=positions))


@pytest.fixture(scope="module")
def raw(lm, prompt):
    return kvjax.prefill(lm, prompt, needs=[kvjax.methods.adakv(20), adakv(InCache()), kvjax.methods.h2o(20)])


def by_rank(pos, now):
    return np.argsort(np.argsort(pos, 1), 1), (pos < now).sum(1)


def kept_raw(pre, cache):
    """The raw prompt, cut to what a cache holds; heads of one length."""
    held = eager.raw_prompt(pre)
    return [eager.keep([layer], np.stack(cache.kept(i)[0]))[0] for i, layer in enumerate(held)]


def test_ragged_heads_have_ranks_of_their_own(lm, raw):
    """Each head alone: the model's first layer, whose inputs do not depend on other heads."""
    policy = adakv(InCache())
    cache = kvjax.compress(raw, policy)
    lengths = cache.lengths[:, 0]
    assert (lengths.min(1) < lengths.max(1)).any()
    layer = int(np.argmax(lengths.max(1) - lengths.min(1)))
    q = np.random.default_rng(0).normal(size=(1, 2, 2, 1, 16)).astype(np.float32)
    context = AttendContext(
        layer=layer, positions=jnp.full((1, 1), 90, jnp.int32), window=None, padded_slots=64, encode=policy.encode,
        rope=lm.decoder.rope,
    )  # fmt: skip
    got = np.asarray(policy.encode.scores(jnp.asarray(q), cache, context))
    omega = np.asarray(lm.decoder.rope.frequencies, np.float64)
    for h, kept in enumerate(cache.kept(layer)[0]):
        k = eager.raw_prompt(raw)[layer][0][h, kept]
        m = len(kept)
        want = rotate(q[0, h, :, 0], np.full(2, m), omega) @ rotate(k, np.arange(m), omega).T / 4
        np.testing.assert_allclose(got[0, h, :, 0, :m], want, atol=1e-5)
        assert np.isneginf(got[0, h, :, 0, m:]).all()


@pytest.mark.parametrize("positions", [InCache(), Clamped(16)])
def test_many_tokens_at_once_as_one_after_the_other(lm, raw, positions):
    policy, ids = adakv(positions), ids_of(24, 5)
    one, many = (kvjax.extend(lm, kvjax.compress(raw, policy), ids, policy, return_logits=True, block=block) for block in (1, 512))
    np.testing.assert_allclose(one.logits, many.logits, atol=2e-5)


def test_evicting_methods_read_attention_as_it_was(lm, raw):
    """H2O with ranks: slots accumulate the mass that attention by rank gives them."""
    policy, budget = kvjax.methods.h2o(20).replace(encode=Stored(positions=InCache())), 20
    cache = kvjax.compress(raw, policy)
    got = kvjax.decode(lm, cache, policy, max_new_tokens=16, stop=(), return_logits=True)
    sums = [np.asarray(e.column_sums())[0] for e in raw.rows[0].evidence]
    mass = [np.take_along_axis(x, np.stack(cache.kept(i)[0]), 1) for i, x in enumerate(sums)]

    def cut(layer, pos, rows):
        now = np.concatenate([mass[layer], np.zeros((2, 1))], 1) + rows.mean(1)
        worst = np.where(pos > pos.max() - budget // 2, np.inf, now).argmin(1)
        stays = np.stack([np.delete(np.arange(budget + 1), j) for j in worst])
        mass[layer] = np.take_along_axis(now, stays, 1)
        return stays

    want = eager.run(lm, kept_raw(raw, cache), got.tokens[0], start=90, places=by_rank, cut=cut)
    np.testing.assert_allclose(got.logits[0, 1:], want[:-1], atol=1e-5)


def test_a_merger_blends_keys_as_they_are_stored(lm, raw):
    policy = kvjax.methods.d2o(20).replace(encode=Stored(positions=InCache()))
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    cache = kvjax.compress(pre, policy)
    dropped = kvjax.compress(pre, policy.replace(merge=kvjax.merge.Drop()))
    for layer in range(3):
        for h, kept in enumerate(dropped.kept(layer)[0]):
            s = int(dropped.start[layer, 0, h])
            np.testing.assert_array_equal(dropped.k[s : s + len(kept)], eager.raw_prompt(pre)[layer][0][h, kept])
    assert not np.array_equal(cache.k, dropped.k)
    assert np.isfinite(kvjax.decode(lm, cache, policy, max_new_tokens=6, stop=(), return_logits=True).logits).all()


def test_cast_slots_and_values_elsewhere(lm, raw):
    want = kvjax.decode(lm, kvjax.compress(raw, adakv(InCache())), adakv(InCache()), max_new_tokens=4, stop=(), return_logits=True)
    cast = Stored(keys=Cast("float32"), values=Cast("float32"), positions=InCache())
    for encode in (cast, Stored(placement=kvjax.encode.OnHost(), positions=InCache())):
        policy = adakv(InCache()).replace(encode=encode)
        got = kvjax.decode(lm, kvjax.compress(raw, policy), policy, max_new_tokens=4, stop=(), return_logits=True)
        np.testing.assert_allclose(got.logits, want.logits, atol=1e-5)


def test_retrievers_that_read_keys_themselves_are_refused(raw):
    policy = kvjax.methods.quest().replace(encode=Stored(positions=InCache()))
    with pytest.raises(ValueError, match=r"TopPages reads stored keys where the text has them, which InCache\(\) moves"):
        kvjax.compress(raw, policy)


@golden.every_model
@pytest.mark.parametrize("press", ["rerotate_knorm", "rerotate_streaming"])
def test_rerotated_keys_are_the_recorded_ones_turned_on(name, press):
    """As recorded they stand at 0 .. m - 1, before a query at m; here at n - m .. n - 1, before a query at n."""
    keys, omega = golden.model(name).reference()["keys"], frequencies(golden.config(name), golden.head_dim(name))
    turn = Rope(tuple(float(f) for f in np.float32(omega)))
    for cell in golden.cells(name, press):
        for layer, kept in enumerate(np.asarray(cell.arrays["keep"], bool)[:, :1]):
            k, n = np.asarray(keys[layer, :1], np.float32), keys.shape[3]
            got = np.asarray(Rerotated().packed(jnp.asarray(k), jnp.asarray(kept), jnp.asarray([n], jnp.int32), turn))
            for h, at in enumerate(kept[0]):
                back = rotate(got[0, h, at], np.full(at.sum(), at.sum() - n), omega)
                np.testing.assert_allclose(back, cell.arrays["rerotated_keys"][layer, 0, h], atol=1e-4)


@pytest.mark.parametrize("method", ["knorm", "adakv"])
def test_rerotated_keys_are_consecutive_and_end_at_the_prompts(lm, raw, method):
    policy = {"knorm": kvjax.methods.knorm(20), "adakv": kvjax.methods.adakv(20, window=4)}[method]
    policy = policy.replace(encode=Stored(positions=Rerotated()))
    cache, omega = kvjax.compress(raw, policy), np.asarray(lm.decoder.rope.frequencies, np.float64)
    for layer in range(3):
        for h, kept in enumerate(cache.kept(layer)[0]):
            s, m = int(cache.start[layer, 0, h]), len(kept)
            at_zero = rerotate(np.asarray(raw.rows[0].k[layer])[0, h], kept, omega)
            np.testing.assert_allclose(cache.k[s : s + m], rotate(at_zero, np.full(m, 90 - m), omega), atol=1e-5)


def test_decoding_after_a_rerotation_goes_on_from_there(lm, raw):
    policy = kvjax.methods.knorm(20).replace(encode=Stored(positions=Rerotated()))
    cache = kvjax.compress(raw, policy)
    got = kvjax.decode(lm, cache, policy, max_new_tokens=12, stop=(), return_logits=True)
    want = eager.run(lm, kept_raw(raw, cache), got.tokens[0], start=90, places=by_rank)
    np.testing.assert_allclose(got.logits[0, 1:], want[:-1], atol=1e-5)


def test_a_cache_is_read_with_the_positions_it_was_made_with(lm, raw):
    cache = kvjax.compress(raw, adakv(InCache()))
    with pytest.raises(ValueError, match=r"holds keys InCache\(\), the policy wants Absolute\(\)"):
        kvjax.decode(lm, cache, kvjax.methods.adakv(20, window=4))


@pytest.mark.parametrize("positions", [Absolute(), Rerotated(), Unrotated(), Clamped(12)])
@pytest.mark.parametrize("rule, when", [(RecentFirst(6), kvjax.AfterPrefill()), (ImportantFirst(0.4), kvjax.Every(1))])
def test_slots_in_tiers_stand_where_they_would_in_one_storage(lm, positions, rule, when):
    """A head's ranks count the slots of all its tiers, whichever of them holds a slot, and wherever it moves later."""
    one = kvjax.methods.streaming_llm(16, 4).replace(encode=Stored(positions=positions), when=kvjax.AfterPrefill())
    tiers = one.replace(encode=Tiered((one.encode,) * 2, rule), when=when)
    pre = kvjax.prefill(lm, ids_of(40), needs=[one, tiers])
    how = dict(max_new_tokens=6, stop=(), return_logits=True)
    want, got = (kvjax.decode(lm, kvjax.compress(pre, policy), policy, **how) for policy in (one, tiers))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_ranks_at_every_reading_are_refused_in_tiers():
    with pytest.raises(ValueError, match="of which its tier holds some alone: use Absolute"):
        Tiered((Stored(positions=InCache()),) * 2, RecentFirst(6))
