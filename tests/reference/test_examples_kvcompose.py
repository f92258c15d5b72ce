"""KVCompose: the worked example A19f, scores, options, edges."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from .kvcompose import composites, kept, layer_counts, own_scores, shared, unstructured
from .top_k import top_k

OWN = np.array([[[0.9, 0.1, 0.5, 0.3], [0.2, 0.8, 0.1, 0.4]], [[0.3, 0.3, 0.2, 0.1], [0.6, 0, 0.1, 0.2]]])


def positions(kept_sets):
    return [[list(j) for j in layer] for layer in kept_sets]


def test_a19f():
    u = shared(OWN)
    assert_allclose(composites(u), [[1.35, 0.775, 0.7, 0.475], [0.9, 0.4, 0.3, 0.2]])
    assert layer_counts(composites(u), 4).tolist() == [3, 1]
    assert positions(kept(u, 4)) == [[[0, 2, 3], [0, 1, 3]], [[0], [0]]]


def test_scores_of_a_second_pass():
    rows = np.zeros((2, 2, 3, 4))
    rows[0, 0, :, 0], rows[0, 1, 1, 0], rows[1, 0, 2, 1] = [0.1, 0.5, 0.2], 0.3, 0.8
    own = own_scores(rows)
    assert_allclose(own, [[0.4, 0, 0, 0], [0, 0.4, 0, 0]])
    assert_allclose(shared(own), [[0.6, 0.2, 0, 0], [0.2, 0.6, 0, 0]])
    assert_allclose(shared(own, value_norm=np.full((2, 4), 3.0)), 3 * shared(own))


def test_sizes_of_values_weigh_before_heads_are_averaged():
    """As kvpress: the other way about the first head would keep its first token."""
    u = shared(np.array([[0.8, 0.1], [0.0, 0.6]]), value_norm=np.array([[1.0, 1.0], [1.0, 4.0]]))
    assert_allclose(u, [[1.2, 1.35], [0.4, 3.65]])


def test_the_first_layer_competes_with_the_best_of_all():
    c = composites(np.array([[[0.1, 0.2]], [[0.5, 0.0]]]))
    assert_allclose(c, [[0.5, 0.1], [0.5, 0.0]])
    assert layer_counts(c, 1).tolist() == [1, 0]


def test_a_lower_bound_leads():
    c = np.array([[0.9, 0.8, 0.7], [0.1, 0.05, 0.01]])
    assert layer_counts(c, 3).tolist() == [3, 0]
    assert layer_counts(c, 3, lower=1).tolist() == [2, 1]


def test_one_layer_of_one_head_is_a_plain_top_k():
    own = np.random.default_rng(0).random((1, 1, 30))
    assert_array_equal(kept(shared(own), 11)[0][0], top_k(own[0, 0], 11))


def test_all_composites_keep_everything():
    assert positions(kept(shared(OWN), 8)) == [[[0, 1, 2, 3]] * 2] * 2
    assert positions(kept(shared(OWN[..., :1]), 2)) == [[[0]] * 2] * 2


def test_unstructured_counts():
    counts = unstructured(shared(OWN), 5)
    assert counts.tolist() == [[2, 2], [0, 1]]
    assert counts.sum() == 5
    assert unstructured(shared(OWN), 5, lower=1).tolist() == [[2, 1], [1, 1]]
