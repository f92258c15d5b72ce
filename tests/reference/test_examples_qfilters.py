"""Q-Filters: the worked example A19e, calibration, recorded presses."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .qfilters import calibrate, q_filters
from .top_k import top_k


def test_a19e():
    u = q_filters(np.array([[[1.0, 0], [0, 1], [-1, 0], [2, 2]]]), np.array([[0.6, -0.8]]))
    assert_allclose(u, [[-0.6, 0.8, 0.6, 0.4]])
    assert list(top_k(u[0], 2)) == [1, 2]


def test_calibration_turns_away_from_the_queries():
    q = np.array([[[[3.0, 0.1], [2.0, -0.1]], [[4.0, 0.0], [1.0, 0.0]]], [[[0.0, -3.0], [0.1, -1.0]], [[0.0, -2.0], [0.0, -2.0]]]])
    f = calibrate(q)
    assert_allclose(np.linalg.norm(f, axis=-1), 1, atol=1e-3)
    assert_allclose(f, [[-1, 0], [0, 1]], atol=0.05)
    assert (np.einsum("hgnd,hd->h", q, f) < 0).all()
    keys = np.array([[[1.0, 0], [-1, 0]], [[0, 1.0], [0, -1]]])
    assert [list(top_k(u, 1)) for u in q_filters(keys, f)] == [[0], [1]]


def test_a_group_has_the_mean_of_its_heads_filters():
    """One head's queries along the first channel, the other's, shorter, along the second: both count alike."""
    f = calibrate(np.array([[[[4.0, 0], [4, 0]], [[0, 1.0], [0, 1]]]]))
    assert_allclose(f, [[-0.5, -0.5]], atol=1e-12)
    u = q_filters(np.array([[[1, 0], [0, 1.6], [0.9, 0.9]]]), f)
    assert_allclose(u, [[0.5, 0.8, 0.9]])
    assert list(top_k(u[0], 2)) == [1, 2]


def test_one_query():
    assert_allclose(calibrate(np.array([[[[3.0, 4.0]]]])), [[-0.6, -0.8]])


@golden.every_model
def test_recorded_presses(name):
    keys = golden.model(name).reference()["keys"]
    with np.load(golden.FOLDER / name / "presses.npz") as stored:
        filters = stored["q_filters"]
    for cell in golden.cells(name, "qfilter"):
        for at in np.ndindex(keys.shape[:2]):
            ours = q_filters(keys[at], filters[at[0]])
            assert_allclose(ours, cell.arrays["scores"][at], atol=1e-4)
            if golden.decided(cell):
                kept = [top_k(u, golden.kept_count(len(u), cell.ratio)) for u in ours]
                assert_array_equal(golden.mask(kept, ours.shape[1]), cell.arrays["keep"][at])
