"""DefensiveKV and Layer-DefensiveKV: worked examples, the transcription on the toy model, one layer alone."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate import AcrossModel, Adaptive, ForcedFirst
from kvjax.score import NoPool
from kvjax.score.worst_case import NEVER, forced_ranks, mass_preserving_pool, risk, weigh
from kvjax.select import TopK
from kvjax.select.forced import most_forced
from kvjax.view import Ranking
from tests.methods.simulation import kept_by, prompt_arrays, same_kept
from tests.reference import defensive_kv as dk
from tests.reference.pooling import avg_pool

W = 8
BUDGETS = pytest.mark.parametrize("budget", [9, 20, 27, 45])


def ranking_of(layers):
    u = jnp.asarray(layers, jnp.float32)[:, None]
    yes, pos = jnp.ones(u.shape, bool), jnp.broadcast_to(jnp.arange(u.shape[-1], dtype=jnp.int32), u.shape)
    return Ranking(scores=u, protected=~yes, valid=yes, pos=pos)


def test_e18_worst_case_with_a_floor():
    a = jnp.asarray([[[0.3, 0, 0, 0.4], [0.3, 0, 0.1, 0]], [[0.3, 0.5, 0, 0], [0.3, 0.1, 0, 0]]])[None, None]
    u = risk(a, jnp.ones((1, 1, 4), bool), NoPool())
    np.testing.assert_allclose(u[0, 0], [0.325, 0.5, 0.325, 0.4], atol=1e-6)


def test_e18_values_decide_between_heads():
    u = jnp.asarray([[[0.325, 0.5, 0.325, 0.4], [0.2, 0.2, 0.6, 0.2]]])
    weighed = weigh(u, jnp.asarray([[[3.0, 1, 1, 1], [1, 1, 1, 3]]]))
    np.testing.assert_allclose(weighed[0], [[0.24375, 0.25, 0.1625, 0.1], [0.05, 0.1, 0.3, 0.15]], atol=1e-6)
    ranking = ranking_of([weighed[0]])
    budget = Adaptive(0.0)(ranking, jnp.asarray([2], jnp.int32))
    assert budget[0, 0].tolist() == [3, 1]
    assert [np.flatnonzero(x).tolist() for x in TopK()(ranking, budget)[0, 0]] == [[0, 1, 2], [2]]


@pytest.mark.parametrize(("threshold", "count"), [(0.9, 3), (0.6, 1), (0.45, 0)])
def test_e18_forced_counts(threshold, count):
    a, yes = jnp.asarray([[[0.5, 0.2, 0.15, 0.1, 0.05]]]), jnp.ones((1, 1, 5), bool)
    ranks = forced_ranks(a, yes, ~yes, threshold)[0, 0]
    assert ranks.tolist() == [*range(count), *[NEVER] * (5 - count)]


def test_the_bias_is_one_number_for_the_heads_of_a_layer():
    """Two heads: the last two columns have .05 and .5, the threshold is .91 - .275 = .635; one and two are forced."""
    a = jnp.asarray([[[0.5, 0.2, 0.1, 0.05, 0.03, 0.02], [0.1, 0.1, 0.05, 0.05, 0.25, 0.25]]])
    after = jnp.broadcast_to(jnp.arange(6) >= 4, a.shape)
    assert (forced_ranks(a, a > 0, after, 0.91) < NEVER).sum(-1).tolist() == [[1, 2]]
    two = forced_ranks(jnp.concatenate([a, a[:, ::-1] / 2]), jnp.ones((2, 2, 6), bool), after.repeat(2, 0), 0.91)
    assert (two[0] == forced_ranks(a, a > 0, after, 0.91)[0]).all(), "a row of a batch is what it is alone"


@pytest.mark.parametrize(("n", "budget", "window", "most"), [(1000, 200, 32, 161), (12, 6, 2, 3), (12, 1, 2, 0), (64, 64, 8, 48)])
def test_the_budget_clamps_what_is_forced(n, budget, window, most):
    """int((n - W) b / n) - W."""
    assert int(most_forced(jnp.asarray(n), jnp.asarray(budget), window)) == most


def test_e18_model_wide_and_per_layer():
    ranking = ranking_of([
        [[0.9, 0.8, 0.15, 0.05], [0.7, 0.2, 0.1, 0.05]],
        [[0.3, 0.2, 0.1, 0.05], [0.6, 0.02, 0.01, 0.01]],
    ])  # fmt: skip
    two = jnp.asarray([2], jnp.int32)
    assert AcrossModel()(ranking, two)[:, 0].tolist() == [[3, 2], [2, 1]]
    assert Adaptive(0.0)(ranking, two)[:, 0].tolist() == [[2, 2], [3, 1]]


def test_pooling_keeps_a_rows_mass():
    a = np.random.default_rng(0).random((2, 3, 9)).astype(np.float32)
    a[0, 0] = 0
    got = mass_preserving_pool(jnp.asarray(a), jnp.ones(9, bool), kvjax.score.AvgPool(5))
    np.testing.assert_allclose(got, dk.mass_preserving_pool(a, 5), rtol=1e-5, atol=1e-7)
    assert avg_pool(a, 5).sum() < a.sum()


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


def references(layers, budget):
    w_o = [np.moveaxis(x.w_o, 0, -1) for x in layers]
    return [dk.layer_of(x.rows(W), x.v, w, budget / 90) for x, w in zip(layers, w_o, strict=True)]


def test_scores(pre, layers):
    scores = kvjax.score_prompt(pre, kvjax.methods.defensive_kv(budget=27, window=W)).rows[0].scores
    for got, want in zip(scores, references(layers, 27), strict=True):
        np.testing.assert_allclose(got[0, :, : 90 - W], want.u, rtol=2e-5, atol=1e-6)


@BUDGETS
def test_what_a_prompt_keeps(pre, layers, budget):
    cache = kvjax.compress(pre, kvjax.methods.defensive_kv(budget=budget, window=W))
    same_kept(kept_by(cache), [dk.defensive(layer, budget / 90) for layer in references(layers, budget)])


@BUDGETS
def test_what_a_prompt_keeps_model_wide(pre, layers, budget):
    cache = kvjax.compress(pre, kvjax.methods.layer_defensive_kv(budget=budget, window=W))
    same_kept(kept_by(cache), dk.layer_defensive(references(layers, budget), budget / 90))


@pytest.mark.parametrize("seed", range(3))
def test_one_layer_is_defensive(seed):
    ranking = ranking_of(np.random.default_rng(seed).random((1, 3, 40)))
    ranking = ranking.replace(second=jnp.where(ranking.scores < 0.2, 3.0, NEVER), protected=ranking.pos >= 36)
    ten = jnp.asarray([10], jnp.int32)
    one, other = (ForcedFirst(allocate, window=4)(ranking, ten) for allocate in (Adaptive(0.0), AcrossModel()))
    np.testing.assert_array_equal(one, other)


def test_nothing_is_forced_at_threshold_0(pre):
    scored = kvjax.score_prompt(pre, kvjax.methods.defensive_kv(budget=27, window=W, threshold=0.0)).rows[0]
    assert (np.asarray(scored.second) == np.float32(NEVER)).all()
