"""KeyDiff by blocks and by chunks: what they reduce to, edges, recorded presses."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from . import golden_presses as golden
from .key_diff import key_diff
from .key_diff_blocks import block_wise, chunk_wise
from .top_k import top_k

KEYS = np.random.default_rng(0).normal(size=(40, 8))


def test_one_block_is_the_plain_form():
    assert_array_equal(block_wise(KEYS, budget=12, block=40), top_k(key_diff(KEYS[None])[0], 12))
    assert_array_equal(chunk_wise(KEYS, share=0.3, chunk=40), top_k(key_diff(KEYS[None])[0], 12))


def test_a_budget_that_holds_everything_keeps_everything():
    assert_array_equal(block_wise(KEYS, budget=40, block=7), np.arange(40))
    assert_array_equal(chunk_wise(KEYS, share=1.0, chunk=7), np.arange(40))


def test_blocks_are_measured_against_what_is_held():
    """A key that repeats a held one goes, although a chunk of its own would keep it."""
    keys = np.array([[1.0, 0], [1, 0], [0.9, 0.1], [0, 1]])
    assert list(block_wise(keys, budget=2, block=1)) == [0, 3]
    assert list(chunk_wise(keys, share=0.5, chunk=2)) == [0, 2]


def test_one_token():
    assert list(block_wise(KEYS[:1], budget=3, block=2)) == [0]
    assert list(chunk_wise(KEYS[:1], share=0.1, chunk=2)) == [0]


@golden.every_model
@pytest.mark.parametrize("press", ["block_keydiff", "chunk_keydiff"])
def test_recorded_presses(name, press):
    keys = golden.model(name).reference()["keys"]
    for cell in golden.cells(name, press):
        n = keys.shape[3]
        for at in np.ndindex(keys.shape[:2]):
            if press == "block_keydiff":
                kept = [block_wise(k, budget=golden.kept_count(n, cell.ratio), block=16) for k in keys[at]]
            else:
                kept = [chunk_wise(k, share=1 - float(cell.ratio), chunk=32) for k in keys[at]]
            assert_array_equal(golden.mask(kept, n), cell.arrays["keep"][at])
