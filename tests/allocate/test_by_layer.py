"""One policy for some layers and another for the rest."""

import jax
import numpy as np
import pytest
from flax import struct

import kvjax
from kvjax import by_layer
from kvjax.allocate import Adaptive, Everything, Pyramid, Uniform
from kvjax.evidence import WindowQueries
from kvjax.merge import ByVotes, Drop, MatchedAttention, RunningMean
from kvjax.score import KeyNorm, Recency, WindowAttention
from kvjax.select import TopK
from tests.conftest import ids_of
from tests.decode_loop import unchecked

ADA = kvjax.methods.adakv(70, window=8)
FIRST_TWO = ADA.replace(allocate=by_layer(Adaptive(alpha=0.2), {(0, 1): Everything()}))


@pytest.mark.parametrize("budget", [61, 62, 70, 71, 89])
def test_two_layers_keep_everything_and_the_total_is_exact(pre, budget):
    cache = kvjax.compress(pre, FIRST_TWO.replace(budget=budget))
    assert (cache.lengths[:2] == 90).all()
    assert cache.lengths.sum() == 3 * 2 * budget


def test_the_rest_is_cut_as_alone_by_ada_kv(pre):
    """The third layer gets 3·70 - 2·90 = 30 slots a head: the same cut as Ada-KV's at a budget of 30."""
    cache, alone = kvjax.compress(pre, FIRST_TWO), kvjax.compress(pre, ADA.replace(budget=30))
    for h in range(2):
        np.testing.assert_array_equal(cache.kept(2)[0][h], alone.kept(2)[0][h])
    assert cache.lengths[2, 0, 0] != cache.lengths[2, 0, 1]


def test_rows_share_out_their_own_prompts(lm):
    both = kvjax.prefill(lm, [ids_of(90), ids_of(40, 1)])
    cache = kvjax.compress(both, FIRST_TWO.replace(budget=0.75))
    np.testing.assert_array_equal(cache.lengths.sum((0, 2)), [3 * 2 * 67, 3 * 2 * 30])
    np.testing.assert_array_equal(cache.lengths[:2], [[[90, 90], [40, 40]]] * 2)


def test_a_remainder_goes_to_the_rest(pre):
    """One layer whole of three: 2·(3·B - 90) slots for two layers of two heads, an odd number a head for even B."""
    policy = ADA.replace(allocate=by_layer(Pyramid(beta=4, window=8), {0: Everything()}))
    for budget in (45, 46, 47):
        cache = kvjax.compress(pre, policy.replace(budget=budget))
        assert (cache.lengths[0] == 90).all() and cache.lengths.sum() == 3 * 2 * budget


def test_a_budget_that_the_whole_layers_exhaust_is_refused(pre):
    with pytest.raises(ValueError, match="keep 180 slots a head together, .* ask for at least 61"):
        kvjax.compress(pre, FIRST_TWO.replace(budget=60))


def test_scores_and_selections_of_each_kind(pre):
    one, other = kvjax.methods.snapkv(20, window=8), kvjax.methods.streaming_llm(20, 4).replace(when=kvjax.AfterPrefill())
    mixed = kvjax.Policy(score=by_layer(one.score, {1: Recency()}), select=by_layer(one.select, {(1,): other.select}), budget=20)
    caches = [kvjax.compress(pre, policy) for policy in (mixed, one, other)]
    for layer, want in enumerate((caches[1], caches[2], caches[1])):
        for a, b in zip(caches[0].kept(layer)[0], want.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


MERGING = {
    "d2o": kvjax.methods.d2o(20).replace(allocate=Uniform()),
    "keepkv": kvjax.methods.keepkv(20),
    "matched": kvjax.methods.snapkv(20, window=8).replace(merge=MatchedAttention(queries=WindowQueries(16))),
}


@pytest.mark.parametrize("name", MERGING)
def test_mergers_of_each_kind_keep_their_own_state(lm, prompt, name):
    """And read their own evidence, or their scorer's state."""
    whole = MERGING[name].replace(when=kvjax.AfterPrefill())
    mixed = whole.replace(merge=by_layer(whole.merge, {0: kvjax.merge.Drop()}))
    pre = kvjax.prefill(lm, prompt, needs=mixed)
    caches = [kvjax.compress(pre, policy) for policy in (mixed, whole.replace(merge=kvjax.merge.Drop()), whole)]
    for layer, want in enumerate((caches[1], caches[2], caches[2])):
        for s, n in zip(np.asarray(want.start[layer, 0]), want.lengths[layer, 0], strict=True):
            for field in ("k", "v", "bias"):
                mine, theirs = (getattr(cache, field) for cache in (caches[0], want))
                np.testing.assert_array_equal(0 if mine is None else mine[s : s + n], 0 if theirs is None else theirs[s : s + n])
    out = kvjax.decode(lm, caches[0], mixed, max_new_tokens=3, stop=(), return_logits=True)
    assert np.isfinite(out.logits).all()


@struct.dataclass
class OfKeyNorm(Drop):
    """A merger that says it reads another scorer's state."""

    state_of = KeyNorm


@pytest.mark.parametrize(
    "mergers, says",
    [
        ((Drop(), RunningMean()), "RunningMean keeps k, v, z of every layer, .* use it for all layers"),
        ((ByVotes(), OfKeyNorm()), "these read KeyNorm and RawMass: use one of them"),
        ((Drop(), ByVotes()), "MergeByLayer reads what RawMass keeps by slot; the scorer is KeyNorm"),
    ],
)
def test_mergers_that_no_layer_can_have_to_itself(lm, mergers, says):
    one, other = mergers
    policy = kvjax.Policy(score=KeyNorm(), merge=by_layer(one, {0: other}), budget=20)
    with pytest.raises(ValueError, match=says):
        policy.check(lm.decoder, 90)


def test_needs_are_those_of_every_kind(lm, prompt):
    mixed = kvjax.Policy(score=by_layer(KeyNorm(), {0: WindowAttention(16)}), budget=20)
    assert mixed.needs == WindowAttention(16).needs
    kvjax.compress(kvjax.prefill(lm, prompt, needs=mixed), mixed)


def test_evictions_while_decoding_take_one_scorer_for_all_layers(lm, pre):
    mixed = kvjax.Policy(score=by_layer(KeyNorm(), {0: Recency()}), select=TopK(recent=1), when=kvjax.Every(1), budget=20)
    with pytest.raises(ValueError, match="ScoreByLayer differs by layer, which an eviction while decoding cannot"):
        kvjax.compress(pre, mixed)
    policy = mixed.replace(when=kvjax.Every(1, score=KeyNorm()))
    out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=6, stop=())
    assert (out.cache.lengths == 20).all()


def test_built_twice_it_is_one_policy_and_equal_in_structure_at_any_budget():
    again = ADA.replace(allocate=by_layer(Adaptive(alpha=0.2), {(0, 1): Everything()}))
    assert again == FIRST_TWO and hash(again) == hash(FIRST_TWO)
    assert jax.tree.structure(again) == jax.tree.structure(FIRST_TWO.replace(budget=71))


@pytest.mark.parametrize(
    "stage, others, error, says",
    [
        (KeyNorm(), {0: TopK()}, TypeError, "all of one slot"),
        (kvjax.AfterPrefill(), {}, TypeError, "all of one slot"),
        (KeyNorm(), {0: Recency(), (0, 1): Recency()}, ValueError, "named once"),
        (KeyNorm(), {-1: Recency()}, ValueError, "counted from 0"),
        (KeyNorm(), {1.5: Recency()}, TypeError, r"an integer from 0 on, or a tuple of them as a key of by_layer; got 1\.5"),
        (KeyNorm(), {(0, "1"): Recency()}, TypeError, "an integer from 0 on"),
    ],
)
def test_what_cannot_be_put_together(stage, others, error, says):
    with unchecked(), pytest.raises(error, match=says):
        by_layer(stage, others)


def test_layers_may_be_numpys_integers():
    with unchecked():
        named = by_layer(KeyNorm(), {np.int64(1): Recency(), (np.int32(0), 2): Recency()})
    assert named == by_layer(KeyNorm(), {1: Recency(), (0, 2): Recency()})
    assert named.layers == ((1,), (0, 2)) and all(type(layer) is int for group in named.layers for layer in group)


def test_a_layer_the_model_lacks(pre):
    with pytest.raises(ValueError, match=r"layers 0 to 2; a stage is named for \[3\]"):
        kvjax.compress(pre, kvjax.Policy(score=by_layer(KeyNorm(), {3: Recency()}), budget=20))
