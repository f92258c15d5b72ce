"""ChunkKV: the worked example A6, what it reduces to, edges, recorded presses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .chunkkv import chunk_scores, chunkkv
from .top_k import top_k

U = np.array([[0.9, 0, 0.1, 0.2, 0.1, 0.3, 0.4, 0, 0.1, 0.5, 0.4], [0.1, 0, 0.1, 0.6, 0.3, 0.1, 0, 0, 0.1, 0.5, 0.2]])


def test_a6_chunk_scores():
    assert_allclose(chunk_scores(U, 4), [0.5, 0.3, 0.6])


@pytest.mark.parametrize("share, kept", [(0.75, [0, 1, 2, 3, 8, 9, 10]), (0.5, [8, 9, 10])])
def test_a6_kept(share, kept):
    assert [list(j) for j in chunkkv(U, size=4, share=share)] == [kept, kept]


@pytest.mark.parametrize("share, kept", [(0.75, [0, 1, 2, 3, 4, 8, 9, 10]), (0.5, [0, 1, 8, 9, 10])])
def test_exact_fills_from_the_next_chunk(share, kept):
    assert [list(j) for j in chunkkv(U, size=4, share=share, exact=True)] == [kept, kept]


def test_chunks_of_one_token_and_one_head_leave_the_base():
    u = np.random.default_rng(0).random((1, 40))
    assert list(chunkkv(u, size=1, share=0.4)[0]) == list(top_k(u[0], 16))


def test_no_more_tokens_than_chunks_hold():
    u = np.random.default_rng(1).random((2, 43))
    for share in (0.1, 0.3, 0.6, 0.9, 1.0):
        assert len(chunkkv(u, size=5, share=share)[0]) <= max(1, int(9 * share)) * 5
    assert len(chunkkv(u, size=5, share=1.0)[0]) == 43


def test_a_prompt_shorter_than_a_chunk_is_ranked_per_head():
    assert [list(j) for j in chunkkv(U[:, :4], size=5, share=0.5)] == [[0, 3], [0, 3]]
    assert [list(j) for j in chunkkv(U[:, :1], size=5, share=0.5)] == [[0], [0]]


@golden.every_model
def test_recorded_presses(name):
    base = golden.cells(name, "snapkv")[0].arrays["scores"]
    for cell in golden.cells(name, "chunkkv_snapkv"):
        for at in np.ndindex(base.shape[:2]):
            kept = chunkkv(base[at], size=8, share=1 - float(cell.ratio))
            assert_array_equal(golden.mask(kept, base.shape[-1]), cell.arrays["keep"][at])
