"""Positions that are places in a region, for every kernel that reads positions: the same to the bit as with one a slot."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels import ragged_attention as op
from kvjax.kernels.codebook_scores import codebook_scores
from kvjax.kernels.packed_attention import packed_attention
from kvjax.slot_positions import in_order, numbered, positions_of, unnumbered

from . import test_codebook_scores as codebooks
from . import test_packed_attention as packed
from .test_ragged_attention import make

LENGTHS = [[40, 700], [64, 9]]
#: queries, window
CASES = {"a window": (1, 33), "a question": (9, None), "a question in a window": (9, 50)}
IMPLEMENTATIONS = ("xla", "reference", "native")


def placed(pos, start, length):
    """Positions of the same pool where the slots of every region count from 0, one stored for each."""
    pos = np.array(pos)
    for at in np.ndindex(start.shape):
        pos[start[at] : start[at] + length[at]] = np.arange(length[at])
    return jnp.asarray(pos)


def both(given):
    """Operands (…, pos, start, length, q_pos) with positions stored, and without; queries in the middle of the longest region."""
    *rest, pos, start, length, q_pos = given
    now = q_pos - q_pos[:, :1] + jnp.asarray([[350], [40]], jnp.int32)
    stored = placed(pos, np.asarray(start), np.asarray(length))
    return [(*rest, x, start, length, now) for x in (stored, unnumbered(len(stored), stored.dtype))]


def same(one, other):
    for x, y in zip(one, other, strict=True):
        np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_ragged_attention(case, impl, native):
    t, window = CASES[case]
    stored, bare = both(make(LENGTHS, 2, t, 16, "float32"))
    same(op.ragged_attention(*stored, window=window, impl=impl), op.ragged_attention(*bare, window=window, impl=impl))
    some = dict(heads=(1,), upto=stored[5][:, 1:], cap=704, window=window, impl=impl)
    same(op.attention_with_weights(*stored, **some), op.attention_with_weights(*bare, **some))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_scores(case, impl, native):
    t, window = CASES[case]
    stored, bare = both(make(LENGTHS, 2, t, 16, "float32"))
    z = [op.ragged_scores(x[0], x[1], *x[3:], cap=704, window=window, impl=impl) for x in (stored, bare)]
    same(z[:1], z[1:])
    assert np.isneginf(z[0]).any()
    stored, bare = both(codebooks.operands(LENGTHS, 2, t, 8, 4, 16, True))
    z = [codebook_scores(*x, cap=704, window=window, impl=impl) for x in (stored, bare)]
    same(z[:1], z[1:])


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("case", CASES)
def test_packed_attention(case, impl, native):
    t, window = CASES[case]
    given, *_ = packed.make(LENGTHS, 2, t, 16, packed.CODES["2 bits by page"])
    stored, bare = both(given)
    same(packed_attention(*stored, window=window, impl=impl), packed_attention(*bare, window=window, impl=impl))


def test_positions_are_numbered_again():
    start, length = jnp.asarray([[[8, 64]], [[32, 16]]]), jnp.asarray([[[5, 3]], [[20, 8]]])
    bare = unnumbered(128, jnp.uint16)
    assert in_order(bare) and bare.nbytes == 0
    again = numbered(bare, start, length)
    assert again.dtype == jnp.uint16 and not in_order(again) and numbered(again, start, length) is again
    for at in np.ndindex(start.shape):
        slots = start[at] + jnp.arange(length[at])
        np.testing.assert_array_equal(again[slots], np.arange(length[at]))
        for pos in (bare, again):
            np.testing.assert_array_equal(positions_of(pos, slots, start[at]), np.arange(length[at]))
