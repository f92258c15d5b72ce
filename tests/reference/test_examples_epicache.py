"""EpiCache's worked examples."""

import numpy as np

from tests.reference.epicache import highest, of_past, released_budgets, stays
from tests.reference.softmax import softmax

A = np.array([[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
B = np.array([[0.05, 0.05, 0.1, 0.8], [0.6, 0.2, 0.1, 0.1]])


def test_the_hardest_look_of_any_query_head():
    u = highest(np.stack([A, B]))
    np.testing.assert_allclose(u, [0.6, 0.5, 0.3, 0.8])
    assert stays([u], 2) == [[0, 3]]
    assert np.argsort(-np.stack([A, B]).mean((0, 1)))[:2].tolist() == [3, 1]  # a mean would keep other ones


def test_a_patch_takes_no_share_of_its_own_rows():
    """Two past keys, then a patch of two queries: the first sees one key of the patch, the second both."""
    one, two = np.array([2.0, 0.0, 5.0, -np.inf]), np.array([0.0, 1.0, 0.0, 0.0])
    u = highest(of_past(np.stack([one, two])[None, :, :2]))
    np.testing.assert_allclose(u, [0.881, 0.731], atol=5e-4)
    assert stays([u], 1) == [[0]]
    whole = highest(softmax(np.stack([one, two]))[None])
    np.testing.assert_allclose(whole[:2], [0.175, 0.475], atol=5e-4)  # with the patch's keys the other one would stay


def test_released_budgets_are_more_than_the_total():
    found = released_budgets(np.array([0, 0.5, 0.8, 1]), 100, 1.1)
    assert found.tolist() == [244, 114, 41, 25] and found.sum() == 424
