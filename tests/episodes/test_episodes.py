"""EpiCache: clusters, budgets, and caches against the transcription; 64 steps behind a routed query."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.cache.layout import resize
from kvjax.episodes.bounded import bounded_prefill, cut, kept, probe_policy, probed
from kvjax.episodes.layer_budgets import shares
from kvjax.episodes.segments import grouped, mean_embedding, medoids, nearest, segments_of, unit
from kvjax.evidence import AttentionStatistics, Evidence, OverPrompt
from kvjax.evidence.reduce import Max, RowsAt
from kvjax.score import HighestRow
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.decode_loop import unchecked
from tests.reference.epicache import Bounded, highest, similarity
from tests.reference.hcattention import allowed
from tests.test_blocks import slow_prefill

TEXT, PATCH, TWO = ids_of(150, 1), ids_of(20, 2), np.array([24, 24, 24])


def slow(lm, total):
    """The transcription on the toy model."""

    def layer_of(weights):
        def layer(x, at, attend):
            def of_inputs(inputs):
                q, k, v = (np.asarray(y)[0].astype(np.float64) for y in (inputs.q, inputs.k, inputs.v))
                return jnp.asarray(attend(q, k, v)[None], jnp.float32), None

            return lm.decoder.layer(weights, x, jnp.asarray(at)[None], of_inputs)[0]

        return layer

    layers = [layer_of(weights) for weights in lm.params["layers"]]
    return Bounded(layers, lambda tokens: lm.decoder.embed(lm.params, jnp.asarray([tokens])), 2, total)


def test_worked_scores():
    rows = jnp.array([[[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]], [[0.05, 0.05, 0.1, 0.8], [0.6, 0.2, 0.1, 0.1]]])[None, None]
    need = AttentionStatistics(Max())
    seen = need.reduction.of_rows(rows, jnp.zeros((1, 2), jnp.int32), rows > 0)
    evidence = Evidence(data={need.key: seen}, length=jnp.array([4]), rope=None)
    view = LayerView.of_prompt(jnp.array([4]), (1, 1, 4), state=jnp.zeros((1, 1, 4), jnp.float32))
    u = HighestRow().score(view.replace(state=HighestRow().observe(view, evidence)), evidence)
    np.testing.assert_allclose(u[0, 0], [0.6, 0.5, 0.3, 0.8])


def test_worked_scores_over_what_was_held_before():
    """Two slots, then a patch of two queries: rows [2 0 | 5] and [0 1 | 0 0] of logits."""
    z = jnp.array([[2.0, 0.0, 5.0, -jnp.inf], [0.0, 1.0, 0.0, 0.0]])
    where = RowsAt(keys=jnp.arange(4)[None, None], steps=jnp.array([[1, 2]]), prompt=jnp.array([2]))
    rows, at = jax.nn.softmax(z)[None, None, None], jnp.array([[2, 3]])
    u = OverPrompt(Max()).of_rows_at(rows, at, rows > 0, where)
    np.testing.assert_allclose(u[0, 0, 0], [0.881, 0.731, 0, 0], atol=5e-4)
    alone = OverPrompt(Max()).of_rows_at(jnp.zeros_like(rows), at, rows > 0, where)
    np.testing.assert_array_equal(alone, jnp.zeros((1, 1, 1, 4)))


def test_worked_budgets_sum_to_the_total():
    sens = np.array([0, 0.5, 0.8, 1])
    np.testing.assert_allclose(shares(sens, 1.1), [1, 0.4665, 0.1703, 0], atol=1e-4)
    found = kvjax.episodes.layer_budgets(sens, 100)
    assert found.sum() == 400 and found[3] == 25 and (np.diff(found) <= 0).all() and found[0] > 200
    assert kvjax.episodes.layer_budgets(np.ones(4), 10).tolist() == [10] * 4


def test_low_similarity_is_sensitive(lm):
    assert kvjax.episodes.sensitivity(lm, TEXT, block=150, sinks=0) == pytest.approx(np.ones(3), abs=1e-5)
    found = kvjax.episodes.sensitivity(lm, TEXT, block=8, sinks=2)
    assert found[0] == pytest.approx(1, abs=1e-5) and (found[1:] < 0.999).all()  # the first layer's keys see no other token


def test_sensitivity_is_the_transcriptions(lm):
    full, masked = (slow_prefill(lm, TEXT, allowed(150, *of))[0] for of in ((150, 0), (32, 5, 0, 16)))
    want = [similarity(a[0], b[0], 40) for a, b in zip(full, masked, strict=True)]
    np.testing.assert_allclose(kvjax.episodes.sensitivity(lm, TEXT, block=32, sinks=5, span=40), want, atol=1e-5)


def test_kmeans_finds_separate_groups_and_is_deterministic():
    rng = np.random.default_rng(0)
    centres = 10 * np.eye(3, 5, dtype=np.float32)
    x = jnp.asarray(np.repeat(centres, 7, 0) + 0.1 * rng.normal(size=(21, 5)).astype(np.float32))
    one, two = (kvjax.episodes.kmeans(x, 3, jax.random.key(42)) for _ in range(2))
    assert [len(set(np.asarray(one.labels)[i : i + 7])) for i in (0, 7, 14)] == [1, 1, 1] and len(set(np.asarray(one.labels))) == 3
    np.testing.assert_array_equal(one.centroids, two.centroids)
    means = [x[np.asarray(one.labels) == c].mean(0) for c in range(3)]
    np.testing.assert_allclose(one.centroids, np.stack(means), atol=1e-5)
    np.testing.assert_allclose(one.inertia, sum(float(((x[i] - one.centroids[c]) ** 2).sum()) for i, c in enumerate(one.labels)),
                               rtol=1e-4)  # fmt: skip


def test_segments_medoids_and_routing(lm):
    embed = mean_embedding(lm)
    table = np.asarray(lm.params["embed"]["weight"])
    np.testing.assert_allclose(embed([3, 5]), (table[3] + table[5]) / 2, atol=1e-6)
    utterances = [[1, 2], [2, 1, 1], [90, 91], [91, 91, 90], [1, 1], [90, 90, 91]]
    assert segments_of(utterances[:5], 2) == [[1, 2, 2, 1, 1], [90, 91, 91, 91, 90], [1, 1]]
    found = grouped(segments_of(utterances, 1), embed, 2, seed=42)
    assert found.episode[0] == found.episode[1] == found.episode[4] != found.episode[2] == found.episode[3] == found.episode[5]
    mine = int(found.episode[2])
    cosine = {i: float(unit(embed(utterances[i])) @ unit(found.centroids[mine])) for i in (2, 3, 5)}
    assert max(cosine, key=cosine.get) == 2  # between the other two, which are as far from the centroid as each other
    assert medoids(found, mine, 1) == [2] and medoids(found, mine, 9) == [2, 3, 5]
    assert nearest(found.centroids, embed([90])) == mine
    assert nearest(np.array([[0.55, 0.8], [0.5, 0.0]]), np.array([1.0, 0.0])) == 0  # by distance it would be the second
    assert len(grouped([[1], [2]], embed, 4, seed=42).centroids) == 2  # fewer segments than episodes


def test_a_cache_is_the_transcriptions(lm):
    cache = bounded_prefill(lm, TEXT, PATCH, TWO, chunk=64)
    want = slow(lm, 48)
    for at in range(0, 150, 64):
        want.chunk(TEXT[at : at + 64], PATCH)
    assert int(cache.position[0]) == 150 and cache.lengths.sum((1, 2)).tolist() == [48] * 3
    for layer, heads in enumerate(want.held):
        for h, (k, v, pos) in enumerate(heads):
            start, length = int(cache.start[layer, 0, h]), int(cache.length[layer, 0, h])
            np.testing.assert_array_equal(cache.pos[start : start + length], pos)
            np.testing.assert_allclose(cache.k[start : start + length], k, atol=1e-4)
            np.testing.assert_allclose(cache.v[start : start + length], v, atol=1e-4)


@pytest.mark.parametrize("tokens", [1, 20, 530])
def test_a_probe_scores_what_was_held_before(lm, tokens):
    """Also of a patch that is read in two blocks: the second does not count the first among what was held."""
    policy, patch = probe_policy(40), ids_of(tokens, 3)
    cache = kvjax.compress(kvjax.prefill(lm, TEXT[:64], needs=policy), policy)
    scored, want = probed(lm, cache, patch, policy), slow(lm, 48)
    want.read(TEXT[:64])
    for layer, heads in enumerate(want.read(patch, keep=False)):
        for h, rows in enumerate(heads):
            start = int(scored.start[layer, 0, h])
            np.testing.assert_allclose(scored.state.score[start : start + 64], highest(rows), atol=1e-5)


def test_a_text_within_its_budget_is_read_exactly(lm, pre, prompt):
    cache = bounded_prefill(lm, prompt, PATCH, np.array([90, 90, 90]), chunk=64)
    full = kvjax.methods.full()
    assert (cache.lengths == 90).all()
    np.testing.assert_allclose(cache.logits[0], pre.rows[0].logits, atol=1e-4)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, max_new_tokens=6, stop=(), return_logits=True)
    got = kvjax.decode(lm, cache, full, max_new_tokens=6, stop=(), return_logits=True)
    np.testing.assert_allclose(got.logits, want.logits, atol=1e-4)


def test_a_probe_leaves_scores_and_nothing_else(lm, prompt):
    policy = probe_policy(40)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    scored = probed(lm, cache, PATCH, policy)
    np.testing.assert_array_equal(scored.length, cache.length)
    np.testing.assert_array_equal(scored.logits, cache.logits)
    assert int(scored.position[0]) == 90 and int(scored.steps[0]) == 0
    even = cut(scored, kept(scored, np.array([5, 9, 13]), False))
    assert even.lengths.tolist() == [[[5, 5]], [[9, 9]], [[13, 13]]]
    shared = kept(scored, np.array([5, 9, 13]), True)
    assert cut(scored, shared).lengths.sum((1, 2)).tolist() == [10, 18, 26]
    moved = resize(even, even.lengths + 40)
    for layer in range(3):
        for a, b in zip(even.kept(layer)[0], moved.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_a_conversation_answered_from_the_nearest_cache(lm):
    talk = [ids_of(12, seed) for seed in range(12)]
    found = kvjax.episodes.build(lm, talk, budget=24, episodes=3, size=2, count=1, chunk=64, instruction=[1, 2, 3])
    assert len(found.caches) == 3 == len(found.medoids) and found.nbytes == sum(c.nbytes for c in found.caches)
    assert all(cache.lengths.sum() == 24 * 3 * 2 and int(cache.position[0]) == 144 for cache in found.caches)
    assert found.nearest(found.grouping.segments[found.medoids[1][0]]) == 1
    before = [np.asarray(x) for x in jax.tree.leaves(found.caches)]
    out = kvjax.episodes.answer(lm, found, talk[3], max_new_tokens=64, stop=())
    assert out.tokens.shape == (1, 64) and jnp.isfinite(out.cache.logits).all()
    assert int(out.cache.position[0]) == 144 + 12 + 64
    for a, b in zip(before, jax.tree.leaves(found.caches), strict=True):
        np.testing.assert_array_equal(a, b)


def test_sensitive_layers_get_more(lm):
    found = kvjax.episodes.build(lm, [TEXT], budget=20, chunk=64, sens=np.array([0.2, 1.0, 0.9]))
    slots = found.caches[0].lengths.sum((1, 2))
    assert slots.sum() == 20 * 3 * 2 and slots[0] > slots[2] >= slots[1] == 5 * 2


@pytest.mark.parametrize(
    "query, error, why", [([], ValueError, "at least one"), ([[1], [2]], ValueError, "one row"), ("who?", TypeError, "lm.encode")]
)
def test_what_is_no_query(lm, query, error, why):
    segments = grouped([[1, 2], [3]], mean_embedding(lm), 1, 0)
    episodes = kvjax.episodes.Episodes(caches=[], grouping=segments, medoids=[[0]], embed=mean_embedding(lm))
    with unchecked(), pytest.raises(error, match=why):
        kvjax.episodes.answer(lm, episodes, query)


def test_what_does_not_fit_is_said_at_once(lm):
    with pytest.raises(ValueError, match="at least one utterance"):
        kvjax.episodes.build(lm, [[1], []], budget=8)
    with pytest.raises(ValueError, match="at least 1"):
        kvjax.episodes.build(lm, [[1]], budget=0)
    with pytest.raises(ValueError, match="each of 3 layers"):
        kvjax.episodes.build(lm, [[1]], budget=8, sens=np.ones(2))
