"""The affine quantiser's worked examples (Q1, Q2, Q9), the release's own numbers, and what must hold of codes and words."""

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import affine

GOLDEN = np.load(Path(__file__).parents[1] / "data" / "golden_methods" / "kivi.npz")
KEYS = np.array([[0, -3], [1, 5], [2, 1], [3.3, 2]])


def test_q1_keys_share_a_step_over_tokens():
    block = affine.quantise(KEYS, bits=2, group=4, axis=0)
    assert_array_equal(block.codes.T, [[0, 1, 2, 3], [0, 3, 2, 2]])
    assert_allclose(block.scale, [[1.1, 2.666667]], atol=5e-7)
    assert_allclose(block.low, [[0, -3]])
    assert_array_equal(affine.pack(block.codes, bits=2, axis=0), [[228, 172]])
    assert_allclose(affine.dequantise(block).T, [[0, 1.1, 2.2, 3.3], [-3, 5, 2.333333, 2.333333]], atol=5e-7)


def test_q1_values_share_a_step_over_channels():
    block = affine.quantise(np.array([[0.2, -0.4, 1.0, 0.5], [3, 3, 3, 3]]), bits=2, group=4, axis=1)
    assert_array_equal(block.codes, [[1, 0, 3, 2], [0, 0, 0, 0]])
    assert_allclose(block.scale, [[0.466667], [0]], atol=5e-7)
    assert_allclose(block.low, [[-0.4], [3]])
    assert_array_equal(affine.pack(block.codes, bits=2, axis=1), [[177], [0]])
    assert_allclose(affine.dequantise(block), [[0.066667, -0.4, 1.0, 0.533333], [3, 3, 3, 3]], atol=5e-7)


def test_q2_one_bit_is_the_minimum_or_the_maximum():
    block = affine.quantise(np.array([-1, -0.8, 0.9, 1.1, 0.05]), bits=1, group=5, axis=0)
    assert_array_equal(block.codes, [0, 0, 1, 1, 0])
    assert_allclose(affine.dequantise(block), [-1, -1, 1.1, 1.1, -1])


def test_q9_four_bits():
    block = affine.quantise(np.array([-1, 0, 0.5, 2]), bits=4, group=4, axis=0)
    assert_array_equal(block.codes, [0, 5, 8, 15])
    assert_allclose(block.scale, [0.2])
    assert_allclose(affine.dequantise(block), [-1, 0, 0.6, 2])


@pytest.mark.parametrize("bits, group, want", [(2, 32, 3.0), (2, 64, 2.5), (2, 128, 2.25), (4, 64, 4.5), (1, 32, 2.0)])
def test_q1_q2_q9_bits_a_scalar(bits, group, want):
    assert affine.bits_a_scalar(128, bits=bits, group=group) == want


def test_three_bits_count_the_spare_two():
    assert affine.bits_a_scalar(30, bits=3, group=30) == Fraction(3 * 32 + 32, 30)


@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
@pytest.mark.parametrize("part, name, axis", [("k", "key", 2), ("v", "value", 3)])
def test_golden_codes_words_and_values(case, part, name, axis):
    bits, group = int(GOLDEN[f"{case}_bits"]), int(GOLDEN[f"{case}_group"])
    want = {w: GOLDEN[f"{case}_{part}_{w}"] for w in ("codes", "packed", "scale", "min", "dequant")}
    block = affine.quantise(GOLDEN[f"{case}_{name}"], bits=bits, group=group, axis=axis)
    assert_array_equal(block.codes, want["codes"])
    packed = affine.pack(block.codes, bits=bits, axis=axis)
    assert_array_equal(packed, want["packed"].view(np.uint32))
    assert_array_equal(affine.unpack(packed, block.codes.shape[axis], bits=bits, axis=axis), want["codes"])
    assert_allclose(block.scale, want["scale"].reshape(block.scale.shape), rtol=1e-6)
    assert_allclose(block.low, want["min"].reshape(block.low.shape), rtol=1e-6)
    assert_allclose(affine.dequantise(block), want["dequant"], atol=2e-6)


@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("n", [0, 1, 9, 10, 32, 33])
def test_words_give_codes_back_whatever_the_length(bits, n):
    codes = np.random.default_rng(bits).integers(0, 2**bits, (3, n, 2))
    packed = affine.pack(codes, bits=bits, axis=1)
    assert packed.dtype == np.uint32 and packed.shape == (3, affine.words(n, bits), 2)
    assert_array_equal(affine.unpack(packed, n, bits=bits, axis=1), codes)


@pytest.mark.parametrize("bits, word", [(1, 0xFFFFFFFF), (2, 0xFFFFFFFF), (3, 0x3FFFFFFF), (4, 0xFFFFFFFF), (8, 0xFFFFFFFF)])
def test_a_full_word_of_the_largest_code(bits, word):
    codes = np.full(32 // bits, 2**bits - 1)
    assert_array_equal(affine.pack(codes, bits=bits, axis=0), [word])


@pytest.mark.parametrize("store", [np.float64, np.float32, np.float16])
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
@pytest.mark.parametrize("axis", [0, 1])
def test_the_error_is_half_a_step_and_what_storing_costs(bits, axis, store):
    x = np.random.default_rng(bits).normal(size=(24, 48)) * 3
    block = affine.quantise(x, bits=bits, group=8, axis=axis, store=store)
    step = np.repeat(block.scale, 8, axis=axis)
    assert 0 <= block.codes.min() and block.codes.max() == 2**bits - 1
    rounding = np.finfo(store).eps * (np.abs(x).max() * 2 + step * (2**bits - 1))
    assert (np.abs(affine.dequantise(block) - x) <= step / 2 + rounding + 1e-12).all()
    assert_array_equal(block.scale, block.scale.astype(store))


def test_groups_know_nothing_of_each_other():
    x = np.random.default_rng(0).normal(size=(12, 3))
    whole = affine.dequantise(affine.quantise(x, bits=2, group=4, axis=0))
    for i in range(0, 12, 4):
        assert_array_equal(affine.dequantise(affine.quantise(x[i : i + 4], bits=2, group=4, axis=0)), whole[i : i + 4])


def test_a_group_that_is_not_full_is_refused():
    with pytest.raises(ValueError, match="10 entries are not groups of 4"):
        affine.quantise(np.zeros((10, 2)), bits=2, group=4, axis=0)
