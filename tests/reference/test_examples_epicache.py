"""EpiCache's worked examples."""

import numpy as np

from tests.reference.epicache import highest, of_past, released_budgets, similarity, stays
from tests.reference.hcattention import allowed
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


def test_blocks_of_a_profile():
    """Blocks of 4 that see the last 2 tokens of the block before, and a first token."""
    mask = allowed(10, 4, 1, overlap=2)
    seen = {p: np.flatnonzero(mask[p]).tolist() for p in (3, 4, 7, 8)}
    assert seen == {3: [0, 1, 2, 3], 4: [0, 2, 3, 4], 7: [0, 2, 3, 4, 5, 6, 7], 8: [0, 6, 7, 8]}


def test_keys_of_a_span_are_one_vector():
    """Spans of two tokens: (3, 0, 0, 1) beside (3, 0, 0, -1) is 0.8, the third token alone 1; token by token it would be 1/3."""
    a, b = np.array([[[3.0, 0], [0, 1], [1, 1]]]), np.array([[[3.0, 0], [0, -1], [1, 1]]])
    assert np.isclose(similarity(a, b, 2), 0.9) and np.isclose(similarity(a, b, 1), 1 / 3)


def test_released_budgets_are_more_than_the_total():
    found = released_budgets(np.array([0, 0.5, 0.8, 1]), 100, 1.1)
    assert found.tolist() == [244, 114, 41, 25] and found.sum() == 424
