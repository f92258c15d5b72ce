"""CUR: by hand, invariances, edges, recorded presses."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .cur import cur, row_leverage
from .top_k import top_k


def test_by_hand():
    k, v = np.array([[[1.0, 0], [0, 1], [1, 1], [2, 0]]]), np.array([[[1.0], [1], [1], [1]]])
    assert_allclose(row_leverage(k[0], 2), [1 / 2, 1 / 2, 1 / 3, 2 / 3])
    assert_allclose(cur(k, v, sinks=0, window=2), [[1 / 4, 1 / 4, 1 / 6, 1 / 3]])
    assert_allclose(cur(k, v, sinks=1, window=None, kind="key"), [[1, 1 / 8, 2 / 8, 4 / 8]])


def test_scaling_a_window_changes_nothing_in_it():
    k, v = np.random.default_rng(0).normal(size=(2, 1, 48, 8))
    scaled = k.copy()
    scaled[:, 16:32] *= 3
    assert_allclose(cur(scaled, v), cur(k, v))


def test_one_token():
    assert_allclose(cur(np.ones((1, 1, 4)), np.ones((1, 1, 4)), sinks=0), [[1]])


@golden.every_model
def test_recorded_presses(name):
    reference = golden.model(name).reference()
    for cell in golden.cells(name, "cur"):
        for at in np.ndindex(reference["keys"].shape[:2]):
            ours = cur(reference["keys"][at], reference["values"][at])
            assert_allclose(ours, cell.arrays["scores"][at], atol=1e-6)
            if golden.decided(cell):
                kept = [top_k(u, golden.kept_count(len(u), cell.ratio)) for u in ours]
                assert_array_equal(golden.mask(kept, ours.shape[1]), cell.arrays["keep"][at])
