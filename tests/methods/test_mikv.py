"""MiKV against its NumPy transcription: a prompt and 64 steps, which slots are exact, its bytes; lossless it is the full cache."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax.codec import Affine
from kvjax.encode import Stored, Tiered
from kvjax.merge import ByChance, Fixed, ProportionalNearest, WeightedNearest
from kvjax.score import AccumulatedAttention, Recency
from kvjax.tiers import ImportantFirst, OriginFirst, RecentFirst, SalientBlocks
from tests.conftest import counted_leaves, ids_of
from tests.held import held
from tests.methods.by_head import ByHead
from tests.methods.in_tiers import positions
from tests.reference.mikv import Mikv, important

HOW = dict(stop=(), return_logits=True)


def method(low=4, **changes):
    return kvjax.methods.mikv(**{"low": low, "group": 8, **changes})


@struct.dataclass
class OfPrompt(Recency):
    """Remembers of every slot how long its prompt is said to be."""

    def init(self, shape):
        return jnp.zeros(shape, jnp.int32)

    def observe(self, view, evidence):
        return jnp.broadcast_to(view.prompt[:, None, None], view.valid.shape)


def slow_of(lm, pre):
    """The transcription in every head, from what the prefill recorded."""
    heads = ByHead(lm, pre, lambda layer: None, fill=False)
    for layer in range(3):
        evidence, n = pre.rows[0].evidence[layer], pre.lengths[0]
        for h in range(2):
            k, v = (np.asarray(x[layer], np.float64)[0, h, :n] for x in (pre.rows[0].k, pre.rows[0].v))
            one = heads.heads[layer][h] = Mikv(0.2, 4, 8)
            q = np.asarray(evidence.data["query_max"])[0, h]
            one.prompt(q[None, None], k, v, np.asarray(evidence.column_sums())[0, h, :n].astype(np.float64))
    return heads


def test_a_prompt_and_64_steps(lm):
    policy = method()
    pre = kvjax.prefill(lm, ids_of(90), needs=policy)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=64, **HOW)
    slow = slow_of(lm, pre)
    want = [slow.step(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=1e-3)
    for layer, heads in enumerate(slow.heads):
        for h, one in enumerate(heads):
            exact = np.sort(out.cache.parts[0].kept(layer)[0][h])
            np.testing.assert_array_equal(exact, np.flatnonzero(one.exact))
            k, v = held(out.cache, policy.encode, layer, 0, h)
            order = np.argsort(positions(out.cache, layer, h))
            np.testing.assert_allclose(k[order], one.k, atol=5e-3)
            np.testing.assert_allclose(v[order], one.v, atol=5e-3)


def test_stages_go_on_seeing_the_prompt_as_long_as_it_was(lm):
    policy = method().replace(score=OfPrompt())
    cache = kvjax.compress(kvjax.prefill(lm, [ids_of(40), ids_of(33)], needs=policy), policy)
    cache = kvjax.extend(lm, kvjax.decode(lm, cache, policy, max_new_tokens=5, stop=()).cache, [[1, 2], [3]], policy).cache
    part = cache.parts[0]
    for layer, row, head in np.ndindex(3, 2, 2):
        at = int(part.start[layer, row, head])
        assert (part.state.score[at : at + int(part.length[layer, row, head])] == (40, 33)[row]).all()


@pytest.mark.parametrize("length", [1, 33])
def test_with_lossless_tiers_it_is_the_full_cache(lm, length):
    """Slots move, and the two softmaxes are one."""
    full = kvjax.methods.full()
    policy = method().replace(encode=Tiered((Stored(), Stored()), rule=ImportantFirst()))
    pre = kvjax.prefill(lm, ids_of(length), needs=[policy, full])
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=24, **HOW) for p in (policy, full))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    n = length + 24
    assert (np.asarray(got.cache.parts[0].length) == important(n, 0.2)).all() and (got.cache.lengths == n).all()
    assert (got.cache.kept(1)[0][0] == np.arange(n)).all()


@pytest.mark.parametrize("when", [kvjax.Every(1), kvjax.WhenFull(2)])
@pytest.mark.parametrize("budget, stays", [(1.0, 33), (33, 33), (12, 12)])
def test_a_budget_cuts_the_prompt_and_every_token_after_it_has_room(lm, budget, stays, when):
    """Tiers give nothing up while decoding, so that regions have room for all that is to come, whatever the budget."""
    policy = kvjax.Policy(encode=Tiered((Stored(), Stored()), rule=ImportantFirst()), when=when, budget=budget)
    plain = kvjax.Policy(budget=budget)
    pre = kvjax.prefill(lm, ids_of(33), needs=policy)
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p, headroom=8), p, max_new_tokens=24, **HOW) for p in (policy, plain))
    assert (got.cache.lengths == stays + 24).all()
    assert all((np.asarray(part.length) <= np.asarray(part.capacity)).all() for part in got.cache.parts)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


def test_what_is_in_another_tier_is_not_merged_as_if_it_were_gone(lm):
    lossless = method().replace(encode=Tiered((Stored(), Stored()), rule=ImportantFirst()))
    plain = kvjax.Policy(score=lossless.score, merge=WeightedNearest(), budget=12)
    tiers = plain.replace(encode=lossless.encode, when=kvjax.Every(1))
    pre = kvjax.prefill(lm, ids_of(33), needs=lossless)
    got, want = kvjax.compress(pre, tiers), kvjax.compress(pre, plain)
    for layer, head in np.ndindex(3, 2):
        order, (start, length) = np.argsort(positions(got, layer, head)), (x[layer, 0, head] for x in (want.start, want.lengths))
        for mine, theirs in zip(held(got, tiers.encode, layer, 0, head), (want.k, want.v), strict=True):
            np.testing.assert_array_equal(mine[order], theirs[start : start + length])
    whole, full = tiers.replace(budget=1.0), kvjax.methods.full()
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=4, **HOW) for p in (whole, full))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)


@pytest.mark.parametrize("merge", [WeightedNearest(), ProportionalNearest(threshold=Fixed(0.0)), ByChance()])
def test_what_was_merged_moves_with_its_slot(lm, merge):
    """A prompt's merged slots go from tier to tier with their biases: the steps are one storage's."""
    plain = kvjax.Policy(score=AccumulatedAttention(), merge=merge, budget=20)
    tiers = plain.replace(encode=Tiered((Stored(), Stored()), rule=ImportantFirst(0.5)), when=kvjax.Every(1))
    pre = kvjax.prefill(lm, ids_of(60), needs=tiers)
    before = kvjax.compress(pre, tiers)
    got, want = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=12, **HOW) for p in (tiers, plain))
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    moved = [set(before.parts[0].kept(1)[0][h]) - set(got.cache.parts[0].kept(1)[0][h]) for h in range(2)]
    assert all(moved)
    assert all((part.bias is not None and (np.asarray(part.bias) > 0).any()) == merge.biased for part in got.cache.parts)


def test_row_is_solo(lm):
    how = dict(max_new_tokens=16, pool_budget=64, **HOW)  # one program for all that are alone
    policy, prompts = method(low=8), [ids_of(n, seed=n) for n in (60, 1, 23)]
    alone = [kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy) for ids in prompts]
    together = kvjax.decode(lm, kvjax.stack(alone), policy, **how)
    batch = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy), policy, **how)
    for r, cache in enumerate(alone):
        solo = kvjax.decode(lm, cache, policy, **how)
        for out in (together, batch):
            np.testing.assert_array_equal(out.tokens[r], solo.tokens[0])
            np.testing.assert_allclose(out.logits[r], solo.logits[0], atol=3e-5)
            np.testing.assert_array_equal(out.cache.kept(1)[r][0], solo.cache.kept(1)[0][0])


def test_the_bytes_are_the_tiers(lm):
    policy = method(low=4, group=8)
    pre = kvjax.prefill(lm, ids_of(300), needs=policy)
    cache = kvjax.compress(pre, policy)
    high, low = cache.parts
    assert (np.asarray(high.length) == 60).all() and (np.asarray(low.length) == 240).all()
    assert low.slot_nbytes == 2 * (16 * 4 // 8 + 2 * 2 * 2) + 2 and high.slot_nbytes == 2 * 16 * 4 + 2 + 4  # the scorer's sum
    assert cache.used_nbytes == 6 * (60 * high.slot_nbytes + 240 * low.slot_nbytes)
    leaves = counted_leaves(cache)
    assert cache.nbytes == sum(x.addressable_shards[0].data.nbytes for x in leaves)


def test_a_high_tier_of_codes(lm, pre):
    policy = method(low=2, high=8)
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=8, **HOW)
    assert all(jnp.issubdtype(part.k.words.dtype, jnp.uint32) for part in out.cache.parts) and jnp.isfinite(out.logits).all()


def test_what_does_not_fit_is_refused(lm, pre):
    with pytest.raises(ValueError, match="give it when=Every"):
        kvjax.compress(pre, method().replace(when=kvjax.AfterPrefill()))
    with pytest.raises(ValueError, match="tiers have no windows"):
        Tiered((kvjax.methods.kivi().encode, Stored()), rule=ImportantFirst())
    with pytest.raises(ValueError, match="compress with it"):
        kvjax.decode(lm, kvjax.compress(pre, method()), method(high=8), max_new_tokens=2)


def test_codes_of_several_slots_are_no_tier_that_single_slots_come_to_or_leave():
    store = Stored(keys=Affine(2, group=8, reduce="token"), whole=True)
    with pytest.raises(ValueError, match="ImportantFirst moves single slots to or from tier 1 while decoding"):
        Tiered((Stored(), store), rule=ImportantFirst())
    with pytest.raises(ValueError, match="OriginFirst moves single slots to or from tier 1"):
        Tiered((Stored(), store), rule=OriginFirst(budget=32))
    assert Tiered((Stored(), store), rule=RecentFirst(8)).stores[1] is store


def test_pages_of_a_tier_are_filled_at_once():
    def tiers(page: int) -> Tiered:
        paged = Stored(keys=Affine(2, group=page, reduce="token"), whole=True)
        return Tiered((Stored(), Stored(), Stored(), paged, Stored()), rule=SalientBlocks(share=0.5, interval=16))

    assert tiers(8).page == 8 and tiers(4).page == 4
    with pytest.raises(ValueError, match="8 slots come to tier 3 at once, which are no whole pages of 16"):
        tiers(16)
