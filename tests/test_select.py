"""Selection and allocation against their slow transcriptions, over made-up scores, ties, paddings and tiny budgets."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvjax import allocate, select
from kvjax.kernels.select_top import select_top
from kvjax.rank_keys import keys
from kvjax.view import Ranking
from tests.conftest import run_stage
from tests.reference.adaptive import adaptive
from tests.reference.top_k import top_k


def ranking_of(scores, protected=None, valid=None, pos=None):
    scores = jnp.asarray(scores, jnp.float32)
    fill = lambda x, default: jnp.broadcast_to(jnp.asarray(default if x is None else x), scores.shape)  # noqa: E731
    pos = fill(pos, jnp.arange(scores.shape[-1], dtype=jnp.int32))
    return Ranking(scores=scores, protected=fill(protected, False), valid=fill(valid, True), pos=pos)


numbers = st.sampled_from([-3.5, -1.0, -0.0, 0.0, 1e-30, 0.5, 0.5, 2.0, 1e30, np.inf, -np.inf])


@settings(max_examples=150, deadline=None)
@given(st.lists(numbers, min_size=12, max_size=12), st.integers(0, 14), st.integers(0, 5), st.integers(0, 5))
def test_top_k_is_the_reference(scores, budget, sinks, recent):
    i = np.arange(12)
    protected = (i < sinks) | (i >= 12 - recent)
    ranking = ranking_of([[[scores]]], protected=protected)
    keep = run_stage(select.TopK(), ranking, jnp.asarray([[[budget]]], jnp.int32))
    want = top_k(np.asarray(scores) + 0.0, min(max(budget, 1), 12), protected)
    np.testing.assert_array_equal(np.flatnonzero(keep[0, 0, 0]), want)


def test_zeros_tie_whatever_their_sign_in_a_compiled_program():
    """x + 0.0 would do for one operation at a time; XLA takes it out of a program."""
    zeros = ranking_of([[[[-0.0, 0.0, -0.0, 0.0]]]])
    assert len(set(np.ravel(jax.jit(keys)(zeros)).tolist())) == 1


@settings(max_examples=60, deadline=None)
@given(st.lists(numbers, min_size=12, max_size=12), st.integers(1, 12), st.integers(1, 12))
def test_invalid_slots_are_never_kept(scores, used, budget):
    valid = np.arange(12) < used
    ranking = ranking_of([[[scores]]], valid=valid)
    keep = np.asarray(run_stage(select.TopK(), ranking, jnp.asarray([[[budget]]], jnp.int32)))[0, 0, 0]
    assert keep.sum() == min(budget, used) and not keep[used:].any()


def test_nan_scores_rank_below_every_number_but_above_padding():
    ranking = ranking_of([[[[np.nan, -np.inf, 1.0, 5.0]]]], valid=[True, True, True, False])
    keep = lambda k: np.asarray(select_top(keys(ranking), jnp.full((1, 1, 1), k, jnp.int32)))[0, 0, 0].tolist()  # noqa: E731
    assert keep(1) == [False, False, True, False]
    assert keep(2) == [False, True, True, False]
    assert keep(4) == [True, True, True, False]


def test_scaling_scores_changes_nothing():
    scores = np.random.default_rng(0).normal(size=(1, 1, 2, 50)).astype(np.float32)
    budget = jnp.full((1, 1, 2), 17, jnp.int32)
    a, b = (run_stage(select.TopK(), ranking_of(s), budget) for s in (scores, 4.0 * scores))
    np.testing.assert_array_equal(a, b)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 24), st.floats(0.0, 1.0))
def test_adaptive_budgets_are_the_reference_and_exact(seed, budget, alpha):
    rng = np.random.default_rng(seed)
    scores = rng.integers(0, 6, (2, 1, 3, 24)).astype(np.float32) + (seed % 2) * rng.random((2, 1, 3, 24), np.float32)
    got = np.asarray(run_stage(allocate.Adaptive(alpha=alpha), ranking_of(scores), jnp.asarray([budget], jnp.int32)))
    assert (got.sum((1, 2)) == 3 * budget).all() and (got >= 1).all()
    want = [adaptive(layer[0], budget, alpha=alpha) for layer in scores]
    np.testing.assert_array_equal(got[:, 0], want)


@settings(max_examples=100, deadline=None)
@given(st.integers(1, 32), st.integers(1, 300), st.integers(1, 400), st.integers(1, 30), st.integers(1, 40))
def test_pyramid_totals_are_exact(layers, budget, length, beta, window):
    ranking = ranking_of(np.zeros((layers, 1, 2, 400)), valid=np.arange(400) < length)
    got = np.asarray(allocate.Pyramid(beta=beta, window=window)(ranking, jnp.asarray([min(budget, length)], jnp.int32)))
    assert got.sum() == layers * 2 * min(budget, length)
    assert (got >= 1).all() and (got <= length).all() and (np.diff(got[:, 0, 0]) <= 0).all()


@pytest.mark.parametrize(
    ("n", "want"),
    [(23, [23] * 4), (30, [24] * 4), (42, [42, 30, 18, 6]), (100, [43, 30, 18, 5])],
)
def test_pyramid_worked_example(n, want):
    """E15 with exact totals: L = 4, b = 24, W = 4, beta = 20 (the release's floor form sums to 84 - 80 more at n = 100)."""
    ranking = ranking_of(np.zeros((4, 1, 1, n)))
    got = run_stage(allocate.Pyramid(beta=20, window=4), ranking, jnp.asarray([min(24, n)], jnp.int32))
    assert np.asarray(got)[:, 0, 0].tolist() == want


def test_pyramid_of_one_layer_is_uniform():
    got = run_stage(allocate.Pyramid(beta=20, window=4), ranking_of(np.zeros((1, 1, 2, 100))), jnp.asarray([24], jnp.int32))
    assert np.asarray(got).tolist() == [[[24, 24]]]


def test_adaptive_worked_example():
    """E17: base 2, safeguard alpha 0.5 keeps head 0: 0, 1, 2 and head 1: 0."""
    scores = [[[[0.9, 0.8, 0.7, 0.1], [0.3, 0.2, 0.06, 0.05]]]]
    ranking = ranking_of(scores)
    budget = run_stage(allocate.Adaptive(alpha=0.5), ranking, jnp.asarray([2], jnp.int32))
    assert np.asarray(budget)[0, 0].tolist() == [3, 1]
    keep = np.asarray(run_stage(select.TopK(), ranking, budget))[0, 0]
    assert [np.flatnonzero(row).tolist() for row in keep] == [[0, 1, 2], [0]]
    uniform = run_stage(allocate.Adaptive(alpha=1.0), ranking, jnp.asarray([2], jnp.int32))
    assert np.asarray(uniform)[0, 0].tolist() == [2, 2]
