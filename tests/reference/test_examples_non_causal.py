"""Non-causal attention: by hand, edges, recorded presses (first prompt: queries come from its hidden states)."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .non_causal import non_causal, received, z_score
from .top_k import top_k


def test_by_hand():
    q, k = np.log([[[[1.0], [2.0], [3.0]]]]), np.array([[[1.0], [0.0], [2.0]]])
    assert_allclose(received(q, k, chunk=3), [[[1 / 3 + 2 / 7 + 3 / 13, 1 / 3 + 1 / 7 + 1 / 13, 1 / 3 + 4 / 7 + 9 / 13]]])
    assert_allclose(received(q, k, chunk=2), [[[1 / 2 + 2 / 3, 1 / 2 + 1 / 3, 1]]])
    assert_allclose(received(q, k, chunk=2, filled=True)[0, 0, 2], 9 / 10 + 1 / 2)


def test_columns_of_a_chunk_sum_to_its_rows():
    q, k = np.random.default_rng(0).normal(size=(2, 3, 20, 8)), np.random.default_rng(1).normal(size=(2, 20, 8))
    assert_allclose(received(q, k, chunk=8).sum(axis=-1), 20.0)


def test_z_score():
    assert_allclose(z_score(np.array([1.0, 2, 3])), [-1, 0, 1])


@golden.every_model
def test_recorded_presses(name):
    reference = golden.model(name).reference()
    for layer in range(len(reference["keys"])):
        k, v = reference["keys"][layer, 0], reference["values"][layer, 0]
        ours = non_causal(golden.queries(name, layer), k, v, chunk=32, filled=True)
        for cell in golden.cells(name, "non_causal_attn"):
            assert_allclose(ours, cell.arrays["scores"][layer, 0], atol=5e-5)
            if golden.decided(cell):
                kept = [top_k(u, golden.kept_count(len(u), cell.ratio)) for u in ours]
                assert_array_equal(golden.mask(kept, ours.shape[1]), cell.arrays["keep"][layer, 0])
