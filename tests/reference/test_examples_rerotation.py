"""Key re-rotation: distances become those of ranks, recorded keys."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import golden_presses as golden
from .rerotation import rerotate
from .rotary import frequencies, rotate

OMEGA = 10000.0 ** (-np.arange(4) / 4)


def test_it_equals_rotating_the_raw_keys_by_rank():
    raw, kept = np.random.default_rng(0).normal(size=(20, 8)), np.array([0, 3, 4, 11, 19])
    k = rotate(raw, np.arange(20), OMEGA)
    assert_allclose(rerotate(k, kept, OMEGA), rotate(raw[kept], np.arange(5), OMEGA), atol=1e-12)


def test_everything_kept_changes_nothing():
    k = np.random.default_rng(1).normal(size=(6, 8))
    assert_allclose(rerotate(k, np.arange(6), OMEGA), k)
    assert_allclose(rerotate(k[:1], np.array([0]), OMEGA), k[:1])


@golden.every_model
@pytest.mark.parametrize("press", ["rerotate_knorm", "rerotate_streaming"])
def test_recorded_keys(name, press):
    keys = golden.model(name).reference()["keys"]
    omega = frequencies(golden.config(name), golden.head_dim(name))
    for cell in golden.cells(name, press):
        for layer, head in np.ndindex(keys.shape[0], keys.shape[2]):
            kept = np.flatnonzero(cell.arrays["keep"][layer, 0, head])
            ours = rerotate(keys[layer, 0, head], kept, omega)
            assert_allclose(ours, cell.arrays["rerotated_keys"][layer, 0, head], atol=1e-4)
