"""The worked examples K-1 to K-4 of the specification, and the properties it lists."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from .compresskv import copy_score, head_ranking, kept, layer_budgets, layer_scores, relative_error, selection_scores, span_mass

HEAD_0 = np.array([[0.1, 0.2, 0.1], [0.3, 0.3, 0.3], [0, 0.05, 0.6]])
HEAD_1 = np.array([[0.02, 0.02, 0.02], [0.9, 0.05, 0.05], [0.01, 0.01, 0.01]])
HEAD_A = [[0.5, 0.1, 0.1, 0.1], [0.3, 0.1, 0.2, 0.1]]
HEAD_B = [[0.05, 0.05, 0.5, 0.2], [0.05, 0.05, 0.4, 0.3]]


def test_k1_mass_on_the_span_counts_where_the_token_is_in_it():
    assert span_mass(HEAD_0, [11, 99, 13], [11, 12, 13]) == pytest.approx(1.05)
    assert span_mass(HEAD_1, [11, 99, 13], [11, 12, 13]) == pytest.approx(0.09)


def test_k1_a_repeated_token_counts_once_or_per_occurrence():
    assert span_mass(HEAD_0[:1], [11], [11, 12, 11]) == pytest.approx(0.4)
    assert span_mass(HEAD_0[:1], [11], [11, 12, 11], multiplicity=True) == pytest.approx(0.8)


def test_classical_score_wants_the_arg_max_on_the_token_itself():
    rows = np.array([[0.1, 0.6, 0.3], [0.1, 0.3, 0.6], [0.8, 0.1, 0.1]])
    assert copy_score(rows, [5, 5, 4], [4, 5, 6], start=1, size=2) == pytest.approx(0.5)


def test_ranking_ties_go_to_the_lower_head():
    assert head_ranking(np.array([0.2, 0.5, 0.5, 0.1])) == [1, 2, 0, 3]


def test_k2_selection():
    prefix = np.array([HEAD_A, HEAD_B])
    rows = np.concatenate([prefix, np.zeros((2, 2, 2))], axis=-1)
    assert_allclose(selection_scores(prefix, 3), [0.2, 0.4, 0.366667, 0.316667], atol=1e-6)
    assert list(kept(rows, 4, 3)) == [1, 2, 4, 5]
    assert_allclose(selection_scores(prefix, 1), [0.45, 0.15, 0.6, 0.35])
    assert list(kept(rows, 4, 1)) == [0, 2, 4, 5]


K3 = [
    (64, [0.45, 0.3, 0.2, 0.05], [90, 70, 58, 38], None),
    (64, [0.35, 0.35, 0.2, 0.1], [77, 77, 58, 44], None),
    (40, [0.97, 0.01, 0.01, 0.01], [64, 32, 32, 32], None),
    (64, [0.9] + 7 * [0.1 / 7], [192, 46, 46, 46, 46, 46, 45, 45], [192, 104, 36, 36, 36, 36, 36, 36]),
    (37, [0.3, 0.3, 0.3, 0.1], [38, 38, 38, 34], None),
    (32, [0.25] * 4, [32] * 4, None),
    (20, [0.25] * 4, [32] * 4, None),
]


@pytest.mark.parametrize("budget, share, round_robin, argmax", K3)
def test_k3_budgets(budget, share, round_robin, argmax):
    assert layer_budgets(share, budget) == round_robin
    assert layer_budgets(share, budget, repair="argmax") == (argmax or round_robin)


def test_k4_error_scores():
    assert_allclose(layer_scores(np.array([[2.0, 6.0], [1.0, 1.0]])), [0.375, 0.625])
    assert relative_error(np.array([1.0, 0, 2]), np.array([1.0, 1, 0])) == pytest.approx(0.99999955, abs=1e-8)


@given(st.integers(32, 300), st.lists(st.floats(0.001, 1), min_size=1, max_size=12), st.sampled_from(["round_robin", "argmax"]))
def test_budgets_sum_and_stay_in_bounds(budget, raw, repair):
    got = layer_budgets(list(np.array(raw) / np.sum(raw)), budget, repair=repair)
    assert sum(got) == budget * len(raw)
    assert min(got) >= 32 and max(got) <= max(3 * budget, 32)


@given(st.integers(0, 1000), st.integers(3, 40), st.integers(5, 40))
def test_the_window_stays_and_the_count_is_the_budget(seed, n, budget):
    rows = np.random.default_rng(seed).random((2, 2, n))
    keep = kept(rows, budget)
    assert len(keep) == min(n, budget) and len(set(keep)) == len(keep)
    assert {n - 2, n - 1} <= set(keep)


def test_the_order_of_the_chosen_heads_does_not_matter():
    rows = np.random.default_rng(0).random((4, 3, 30))
    assert list(kept(rows, 10)) == list(kept(rows[::-1], 10))
