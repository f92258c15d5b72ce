"""The worked examples of the specification for scores and kept sets: E2, E4, E8, E10."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from .accumulated import column_sums, visible_mean
from .expected_attention import expected_attention
from .heads import all_mean
from .mean_rotation import mean_rotation
from .pooling import avg_pool, max_pool, no_pool
from .top_k import ranking, sinks_and_recent, top_k
from .window_attention import scores_by_query_head, scores_of_rows

H2O_ROWS = [[1], [0.6, 0.4], [0.2, 0.7, 0.1], [0.1, 0.5, 0.1, 0.3], [0.15, 0.35, 0.2, 0.1, 0.2]]


def square(rows):
    return np.array([row + [0.0] * (len(rows) - len(row)) for row in rows])


def test_e2_h2o_sum_and_visible_mean():
    rows = square(H2O_ROWS)[None, None]
    acc, mean = column_sums(rows)[0], visible_mean(rows)[0]
    assert_allclose(acc, [2.05, 1.95, 0.4, 0.4, 0.2])
    assert_allclose(mean, [0.41, 0.4875, 0.1333, 0.2, 0.2], atol=5e-5)
    recent = sinks_and_recent(5, recent=2)
    assert list(top_k(acc, 3, recent)) == [0, 3, 4]
    assert list(top_k(mean, 3, recent)) == [1, 3, 4]


@pytest.mark.parametrize(
    "last, kept",
    [
        ([[0.10, 0.30, 0.05, 0.35, 0.20], [0.34, 0.02, 0.24, 0.10, 0.30]], [0, 3, 4]),
        ([[0.4, 0.3, 0.2, 0.1], [0.4, 0.3, 0.2, 0.1]], [0, 1, 2]),
    ],
)
def test_e4_tova_one_set_for_all_heads(last, kept):
    scores = all_mean(np.array(last)[:, None])
    assert [list(top_k(row, 3)) for row in scores] == [kept, kept]


@pytest.mark.parametrize(
    "pool, kept",
    [
        (avg_pool, [0, 1, 2, 6, 7]),
        (max_pool, [0, 1, 2, 6, 7]),
        (no_pool, [1, 4, 5, 6, 7]),
    ],
)
def test_e8_snapkv(pool, kept):
    rows = np.zeros((1, 1, 2, 8))
    rows[0, 0, :, :6] = [[0.05, 0.30, 0.02, 0.03, 0.20, 0.05], [0.05, 0.20, 0.04, 0.01, 0.10, 0.10]]
    scores = scores_of_rows(rows, window=2, pool=pool, size=3)[0]
    if pool is avg_pool:
        assert_allclose(2 * scores, [0.2, 0.22, 0.2, 0.1333, 0.1633, 0.15], atol=5e-5)
    assert list(top_k(np.append(scores, [0, 0]), 5, sinks_and_recent(8, recent=2))) == kept


def test_heads_are_reduced_before_a_maximum_is_taken():
    """As in Ada-KV's release: a spike of one query head counts half all around it."""
    rows = np.zeros((1, 2, 1, 16))
    rows[0, 0, 0, [1, 11]], rows[0, 1, 0, [5, 11]] = [0.9, 0.5], [0.9, 0.5]
    scores = scores_of_rows(rows, window=2, pool=max_pool, size=7)[0]
    assert_allclose(scores, [0.45] * 8 + [0.5] * 6)


def test_snapkv_takes_a_maximum_of_every_query_head():
    """Where the spikes of two query heads are near, each counts: half of both; the mean's maximum is one of them."""
    rows = np.zeros((1, 2, 1, 16))
    rows[0, 0, 0, [1, 11]], rows[0, 1, 0, [5, 11]] = [0.9, 0.5], [0.9, 0.5]
    scores = scores_by_query_head(rows, window=2, pool=max_pool, size=7)[0]
    assert_allclose(scores, [0.45, 0.45, 0.9, 0.9, 0.9, 0.45, 0.45, 0.45, 0.7, 0.5, 0.5, 0.5, 0.5, 0.5])
    means = [rule(rows, window=2, pool=avg_pool, size=7) for rule in (scores_by_query_head, scores_of_rows)]
    assert_allclose(*means)


@pytest.mark.parametrize(
    "covariance, expected, order",
    [
        (True, [0.3941, 0.5210, 0.0958, 0.1248], [1, 0]),
        (False, [0.5052, 0.2457, 0.1228, 0.1246], [0, 1]),
    ],
)
def test_e10_expected_attention(covariance, expected, order):
    keys = np.array([[[2.0, 0], [0, 2], [0, 0], [1, 1]]])
    values = np.array([[[1.0, 0], [2, 0], [0, 1], [0.5, 0]]])
    mean, cov = np.array([[[1.0, 0]]]), np.array([[np.diag([0.0, 1])]])
    scores = expected_attention(mean, cov, keys, values, sinks=0, covariance=covariance)[0]
    assert_allclose(scores, expected, atol=1e-4)
    assert list(ranking(scores)[:2]) == order


def test_e10_mean_rotation_shrinks():
    rbar = mean_rotation(np.array([1.0]), 4, 2)
    assert_allclose(rbar, [[-0.1850, 0.8579], [-0.8579, -0.1850]], atol=5e-5)
    assert_allclose(np.linalg.norm(rbar, 2), 0.8776, atol=5e-5)
