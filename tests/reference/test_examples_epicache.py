"""EpiCache's worked examples."""

import numpy as np

from tests.reference.epicache import highest, released_budgets, stays

A = np.array([[0.1, 0.5, 0.2, 0.2], [0.1, 0.2, 0.3, 0.4]])
B = np.array([[0.05, 0.05, 0.1, 0.8], [0.6, 0.2, 0.1, 0.1]])


def test_the_hardest_look_of_any_query_head():
    u = highest(np.stack([A, B]))
    np.testing.assert_allclose(u, [0.6, 0.5, 0.3, 0.8])
    assert stays([u], 2) == [[0, 3]]
    assert np.argsort(-np.stack([A, B]).mean((0, 1)))[:2].tolist() == [3, 1]  # a mean would keep other ones


def test_released_budgets_are_more_than_the_total():
    found = released_budgets(np.array([0, 0.5, 0.8, 1]), 100, 1.1)
    assert found.tolist() == [244, 114, 41, 25] and found.sum() == 424
