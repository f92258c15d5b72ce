"""MPCache against its NumPy transcription: what stays, the bounds, two levels, shared choices."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import AllHeld
from kvjax.retrieve import TwoLevels
from kvjax.retrieve.two_levels import chosen_clusters, mixed, worth
from kvjax.score.look_once import head_mean_rows, rows_used
from kvjax.select import AtLeast
from kvjax.view import LayerView, Ranking
from tests.conftest import compilations, ids_of, policy_of
from tests.methods import reading
from tests.methods.inputs import layers_of
from tests.reference import mpcache as slow

LEVELS = dict(large=16, small=8, parts=(0.5, 0.4), alpha=0.6)


def reads(**changed):
    """Everything kept, so that the retriever is seen alone."""
    return kvjax.Policy(retrieve=TwoLevels(**{**LEVELS, **changed}))


@pytest.mark.parametrize(("tau", "want"), [(1e-3, [0, 2, 4]), (6e-4, [0, 2, 3, 4]), (1e-4, [0, 1, 2, 3, 4])])
def test_thresholds_by_hand(tau, want):
    """E25: head-mean rows of two queries."""
    rows = np.array([[0.6, 0.0005, 0.2, 0, 0.1995], [0.7, 0, 0.1, 0.0008, 0.1992]], np.float32)
    scores = jnp.broadcast_to(jnp.asarray(rows.max(0)), (1, 1, 2, 5))
    pos = jnp.broadcast_to(jnp.arange(5), scores.shape)
    ranking = Ranking(scores=scores, protected=jnp.zeros(scores.shape, bool), valid=pos >= 0, pos=pos)
    budget = AllHeld()(ranking, jnp.array([1]))
    for keep in AtLeast(tau=tau)(ranking, budget)[0, 0]:
        np.testing.assert_array_equal(np.flatnonzero(keep), want)


def test_something_always_stays():
    pos = jnp.arange(4)[None, None, None]
    ranking = Ranking(scores=jnp.full((1, 1, 1, 4), 0.1), protected=jnp.zeros((1, 1, 1, 4), bool), valid=pos >= 0, pos=pos)
    np.testing.assert_array_equal(
        AtLeast(tau=0.5)(ranking, AllHeld()(ranking, jnp.array([4])))[0, 0, 0], [True, False, False, False]
    )


#: E25, its bounds: the keys of E22.
EXAMPLES = {
    "loose": ((1, -1), [[(3, 3), (0, 0)], [(1, 0), (1, 0)], [(-1, -2), (0, 0)]], [0, 1, 0.4]),
    "tight": ((1, -2), [[(1, 0), (0, 1)], [(0, -1), (-1, 0)], [(2, 2), (1, 1)]], [-0.6, 0.4, -1.6]),
}


@pytest.mark.parametrize("name", EXAMPLES)
def test_bounds_by_hand(name):
    q, clusters, want = EXAMPLES[name]
    keys = jnp.asarray(clusters, jnp.float32)[None, None]
    got = worth(jnp.asarray(q, jnp.float32)[None, None, None], mixed(keys.min(3), keys.max(3), 0.6))
    np.testing.assert_allclose(got[0, 0], want, atol=1e-6)
    np.testing.assert_allclose([slow.bound(np.array(q, float), np.array(c, float), 0.6) for c in clusters], want, atol=1e-12)


def test_small_clusters_come_from_large_ones_that_survived():
    large = jnp.array([[[0.0, 5.0, 1.0, 0.0]]])  # of seven small clusters: the last large one holds one
    small = jnp.array([[[0.0, 0.5, 1.0, 3.0, 9.0, 9.0, 2.0]]])
    full = jnp.array([[7]])
    got = chosen_clusters(large, small, full, (0.25, 0.3), 2)  # one of four large ones, two of seven small ones, and the ends
    np.testing.assert_array_equal(np.flatnonzero(got[0, 0]), [0, 3, 6])
    least = chosen_clusters(large, small, full, (0.0, 0.0), 2)
    np.testing.assert_array_equal(np.flatnonzero(least[0, 0]), [0])
    everything = chosen_clusters(large, small, full, (1.0, 1.0), 2)
    assert everything.all()


def test_static_scores_are_the_transcriptions(lm, pre, prompt):
    policy = policy_of("mpcache")
    scored = kvjax.score_prompt(pre, policy).rows[0].scores
    for layer, seen in enumerate(layers_of(lm, prompt)):
        want = slow.static_scores(seen.q.astype(float), seen.k.astype(float), 18)
        np.testing.assert_allclose(scored[layer, 0, :, :90], np.broadcast_to(want, (2, 90)), atol=1e-5)
    np.testing.assert_array_equal(rows_used(jnp.array([3, 90, 24000, 24010]), 4096), [1, 18, 4096, 2401])
    with_few = kvjax.score_prompt(pre, kvjax.methods.mpcache(window=4)).rows[0].scores
    seen = layers_of(lm, prompt)[0]
    np.testing.assert_allclose(with_few[0, 0, 0, :90], slow.static_scores(seen.q.astype(float), seen.k.astype(float), 4), atol=1e-5)
    q, k = jnp.asarray(seen.q[None, :, :, -4:]), jnp.asarray(seen.k[None])
    rows = head_mean_rows(q, k, jnp.ones((1, 90), bool))
    np.testing.assert_allclose(rows.sum(-1), 1, atol=1e-5)


def test_a_threshold_keeps_what_reaches_it(pre):
    tau = 0.02
    cache = kvjax.compress(pre, kvjax.methods.mpcache(tau=tau, large=16, small=8))
    scores = kvjax.score_prompt(pre, kvjax.methods.mpcache(tau=tau)).rows[0].scores
    for layer in range(3):
        want = np.flatnonzero(np.asarray(scores[layer, 0, 0, :90]) >= tau)
        assert 0 < len(want) < 90
        for kept in cache.kept(layer)[0]:
            np.testing.assert_array_equal(kept, want)


@pytest.mark.parametrize("share", [1, 2])
def test_steps_are_the_transcriptions(lm, pre, share):
    clusters = {}

    def rule(layer, inputs, k, v):
        q = np.asarray(inputs.q, np.float64)[0, :, :, 0]

        def read(h, g):
            if layer % share == 0:
                clusters[h] = slow.slots_read(q[h], k[h], 90, **LEVELS)[0]
            slots = [np.arange(c * 8, c * 8 + 8) for c in clusters[h]]
            return np.concatenate([*slots, np.arange(88, k.shape[1])])

        return reading.over_lists(q, k, v, read)

    reading.same_as_written_out(lm, pre, reads(share=share), rule)


def test_reading_everything_is_the_full_cache(lm, pre):
    reading.reads_everything(lm, pre, reads(parts=(1.0, 1.0)))


def test_few_clusters_are_read_of_few_tokens_and_cost_their_bounds(lm, pre):
    cache, plain = (kvjax.compress(pre, p) for p in (reads(share=2), kvjax.methods.full()))
    state = cache.retrieval
    assert [isinstance(x, tuple) for x in state.small] == [False, True, False]
    bounds = sum(x.nbytes for layer in (0, 2) for x in (state.large[layer], state.small[layer]))
    assert bounds == 2 * 2 * (64 + 32) * 16 * 4  # layers, heads, clusters of either kind, rounded up
    assert cache.nbytes - plain.nbytes == bounds + state.full.nbytes
    few, many = (reading.decoded(lm, pre, p, 4).logits for p in (reads(), kvjax.methods.full()))
    assert float(jnp.abs(few - many).max()) > 1e-3


def test_rows_are_what_they_are_alone(lm):
    policy = kvjax.methods.mpcache(budget=0.6, large=16, small=8, share=2)
    prompts = [ids_of(n, seed=n) for n in (90, 61, 130)]
    how = dict(max_new_tokens=12, stop=(), return_logits=True, pool_budget=130)  # one program for all that are alone
    batch = kvjax.decode(lm, kvjax.compress(kvjax.prefill(lm, prompts, needs=policy), policy), policy, **how)
    caches = [kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy) for ids in prompts]
    stacked = kvjax.decode(lm, kvjax.stack(caches), policy, **how)
    for r, cache in enumerate(caches):
        solo = kvjax.decode(lm, cache, policy, **how)
        for several in (batch, stacked):
            np.testing.assert_array_equal(several.logits[r], solo.logits[0])


def test_shares_are_data(lm, pre):
    how = dict(max_new_tokens=3, stop=())
    for parts, programs in (((0.5, 0.2), 1), ((0.7, 0.6), 0)):
        policy = reads(parts=parts, large=24)  # sizes of no other test, whose program would be there already
        with compilations() as seen:
            kvjax.decode(lm, kvjax.compress(pre, policy), policy, **how)
        assert seen.count("jit(_loop)") == programs


def test_refusals(lm, pre):
    for wrong in ({"small": 12}, {"large": 20}, {"share": 0}):
        with pytest.raises(ValueError, match="whole small ones"):
            reads(**wrong)
    with pytest.raises(ValueError, match="numbers on the device"):
        kvjax.compress(pre, reads().replace(encode=policy_of("hcattention").encode))
    with pytest.raises(ValueError, match="compress it with this policy"):
        kvjax.decode(lm, kvjax.compress(pre, reads()), reads(large=32), max_new_tokens=2)
    view = LayerView.of_prompt(jnp.array([5]), (1, 2, 5))
    assert not AtLeast().protected(view, jnp.full((1, 2), 5)).any()
