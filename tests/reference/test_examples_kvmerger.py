"""KVMerger: the worked example E21, what it reduces to, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .kvmerger import merged, neighbour_cosines, runs_above, runs_of_count, singletons, weights

ANGLES = np.deg2rad([0, 5, 8, 60, 62, 64])
KEYS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)
NONE = np.zeros(6, bool)
ATTENTION = np.array([0.1, 0.5, 0.2, 0.4, 0.3, 0.1])


def test_e21_runs():
    cos = neighbour_cosines(KEYS)
    assert_allclose(cos, [0.9962, 0.9986, 0.6157, 0.9994, 0.9994], atol=5e-5)
    assert runs_above(cos, 0.99, NONE) == [[0, 1, 2], [3, 4, 5]]
    assert runs_of_count(cos, 2, NONE) == [[0, 1, 2], [3, 4, 5]]


def test_e21_weights_keys_and_values():
    squared = ((KEYS[:3] - KEYS[1]) ** 2).sum(axis=1)
    assert_allclose(squared, [0.00761, 0, 0.00274], atol=5e-6)
    assert_allclose(squared.mean(), 0.0034505, atol=5e-7)
    assert_allclose(weights(KEYS[:3], 1), [0.1656, 0.4990, 0.3354], atol=6e-5)
    assert_allclose(weights(KEYS[3:], 0), [0.4897, 0.3628, 0.1475], atol=6e-5)
    k, v, positions = merged(KEYS, np.eye(6), ATTENTION, [[0, 1, 2], [3, 4, 5]])
    assert_allclose(k, [[0.99484, 0.09017], [0.47983, 0.87700]], atol=1e-5)
    assert_allclose(v[0, :3], [0.4969, 1.4969, 1.0062], atol=6e-5)
    assert_allclose(v[1, 3:], [1.4692, 1.0883, 0.4425], atol=6e-5)
    assert positions.tolist() == [1, 3]


@pytest.mark.parametrize("keys", [KEYS, np.ones((6, 2))])
def test_a_threshold_of_one_is_the_identity(keys):
    runs = runs_above(neighbour_cosines(keys), 1.0, NONE)
    k, v, positions = merged(keys, KEYS, ATTENTION, runs)
    assert_array_equal(k, keys)
    assert_array_equal(v, KEYS)
    assert_array_equal(positions, np.arange(6))


def test_as_many_runs_as_tokens_is_the_identity():
    assert runs_of_count(neighbour_cosines(KEYS), 6, NONE) == [[j] for j in range(6)]


def test_singletons_break_runs():
    single = singletons(ATTENTION, heavy=1, recent=1)
    assert single.tolist() == [False, True, False, False, False, True]
    cos = np.ones(5)
    expected = [[0], [1], [2, 3, 4], [5]]
    assert runs_above(cos, 0.5, single) == expected
    assert runs_of_count(cos, 2, single) == expected
    assert runs_of_count(np.array([1, 1, 0.2, 0.1, 1]), 5, single) == [[0], [1], [2, 3], [4], [5]]


def test_a_capped_run_starts_anew():
    assert runs_above(np.ones(5), 0.5, NONE, cap=4) == [[0, 1], [2, 3, 4, 5]]


def test_equal_keys_weigh_alike_and_values_keep_their_sum():
    k, v, _ = merged(np.ones((6, 2)), np.arange(12.0).reshape(6, 2), ATTENTION, [list(range(6))])
    assert_allclose(k, [[1, 1]])
    assert_allclose(v, [[30, 36]])


def test_one_token():
    runs = runs_above(neighbour_cosines(KEYS[:1]), 0.5, NONE[:1])
    assert runs == [[0]] == runs_of_count(neighbour_cosines(KEYS[:1]), 1, NONE[:1])
    assert_array_equal(merged(KEYS[:1], KEYS[:1], ATTENTION[:1], runs)[1], KEYS[:1])
