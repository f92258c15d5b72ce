"""Affine codes against their reference and the authors' numbers, to the bit."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.codec import Affine, AsIs, Cast, ProductQuantized
from kvjax.codec.packing import pack, unpack
from tests.reference import affine as reference
from tests.reference.golden_methods import load

GOLDEN = load("kivi")
SIDES = {"token": ("k", "key", 2), "channel": ("v", "value", 3)}


@pytest.mark.parametrize("reduce", SIDES)
@pytest.mark.parametrize("case", ["c0", "c1", "c2"])
def test_the_authors_codes_words_and_values(case, reduce):
    part, name, axis = SIDES[reduce]
    codec = Affine(bits=int(GOLDEN[f"{case}_bits"]), group=int(GOLDEN[f"{case}_group"]), reduce=reduce, store="float32")
    x = jnp.asarray(GOLDEN[f"{case}_{name}"], jnp.float32)
    rows = jax.jit(codec.encode)(x)
    want = {w: GOLDEN[f"{case}_{part}_{w}"] for w in ("codes", "packed", "scale", "min", "dequant")}
    packed = want["packed"].astype(np.int32).view(np.uint32)
    np.testing.assert_array_equal(np.asarray(rows.words).reshape(packed.shape), packed)
    for found, name in ((rows.scale, "scale"), (rows.low, "min")):
        np.testing.assert_allclose(found, want[name].reshape(found.shape), rtol=1e-6)
    np.testing.assert_allclose(codec.decode(rows, jnp.float32), want["dequant"], atol=2e-6)
    found = np.asarray(rows.words)
    words = found.reshape(*found.shape[:2], -1, found.shape[-1]) if reduce == "token" else found
    codes = reference.unpack(words, x.shape[axis], bits=codec.bits, axis=axis)
    np.testing.assert_array_equal(codes, want["codes"])


@pytest.mark.parametrize("store", ["float16", "float32"])
@pytest.mark.parametrize("reduce", SIDES)
@pytest.mark.parametrize("bits", [1, 2, 3, 4, 8])
def test_codes_and_words_are_the_references(bits, reduce, store):
    axis, group = SIDES[reduce][2], 16
    x = np.random.default_rng(bits).normal(size=(2, 3, 48, 32)).astype(np.float32) * 3
    x[0, 0, :16, 5] = x[1, 2, 7, 16:] = 0.25  # groups without a range
    codec = Affine(bits=bits, group=group, reduce=reduce, store=store)
    rows = codec.encode(jnp.asarray(x))
    want = reference.quantise(x, bits=bits, group=group, axis=axis, store=np.dtype(store).type)
    rounding = 0 if store == "float16" else 2.5e-7  # a difference and a division in float32
    np.testing.assert_allclose(np.asarray(rows.scale, np.float64), want.scale, rtol=rounding)
    np.testing.assert_array_equal(np.asarray(rows.low, np.float64), want.low)
    codes = want.codes.reshape(2, 3, 3, group, 32) if reduce == "token" else want.codes
    np.testing.assert_array_equal(rows.words, reference.pack(codes, bits=bits, axis=3))
    steps = 2**bits - 1 if store == "float32" else 0  # a step that is rounded once more, as often as it is taken
    atol = 1e-6 + steps * float(want.scale.max()) * rounding
    np.testing.assert_allclose(codec.decode(rows, jnp.float32), reference.dequantise(want), atol=atol)
    assert (rows.scale.dtype, rows.words.dtype) == (store, jnp.uint32)


@pytest.mark.parametrize("reduce", SIDES)
@pytest.mark.parametrize("bits", [2, 3, 8])
def test_no_code_leaves_its_bits_where_the_minimum_is_rounded(bits, reduce):
    """1000.3 is 1000.5 in float16, 1000.7 too: codes would lie below 0 or above the top, and in the bits of those beside them."""
    x = np.full((1, 1, 16, 16), 1000.3, np.float32)
    x[..., ::2, ::2] = 1000.35
    x[..., 8:, :], x[..., 12:, :] = 1000.7, 999.8
    codec = Affine(bits=bits, group=8, reduce=reduce)
    rows = codec.encode(jnp.asarray(x))
    want = reference.quantise(x, bits=bits, group=8, axis=SIDES[reduce][2], store=np.float16)
    assert 0 <= want.codes.min() and want.codes.max() <= 2**bits - 1
    np.testing.assert_allclose(codec.decode(rows, jnp.float32), reference.dequantise(want), atol=1e-3)


@pytest.mark.parametrize("bits, each", [(1, 32), (2, 16), (3, 10), (4, 8), (8, 4)])
@pytest.mark.parametrize("n", [1, 9, 10, 11, 64])
def test_words_go_there_and_back(bits, each, n):
    codes = np.random.default_rng(n).integers(0, 1 << bits, (2, n))
    packed = pack(jnp.asarray(codes, jnp.int32), bits)
    assert packed.shape == (2, -(-n // each))
    np.testing.assert_array_equal(packed, reference.pack(codes, bits=bits, axis=1))
    np.testing.assert_array_equal(unpack(packed, n, bits), codes)


def test_worked_example():
    keys = jnp.asarray([[0, -3], [1, 5], [2, 1], [3.3, 2]], jnp.float32)[None, None]
    rows = Affine(bits=2, group=4, reduce="token", store="float32").encode(keys)
    np.testing.assert_array_equal(rows.words[0, 0, 0], [[228, 172]])
    values = jnp.asarray([[0.2, -0.4, 1.0, 0.5], [3, 3, 3, 3]], jnp.float32)[None, None]
    codec = Affine(bits=2, group=4, store="float32")
    rows = codec.encode(values)
    np.testing.assert_array_equal(rows.words[0, 0], [[177], [0]])
    want = [[0.066667, -0.4, 1.0, 0.533333], [3, 3, 3, 3]]
    np.testing.assert_allclose(codec.decode(rows, jnp.float32)[0, 0], want, atol=5e-7)


@pytest.mark.parametrize("reduce", SIDES)
@pytest.mark.parametrize("bits, group, want", [(2, 32, 3), (2, 64, 2.5), (4, 64, 4.5), (1, 32, 2), (3, 32, 5)])
def test_bits_a_number(bits, group, want, reduce):
    """Three-bit codes of 32 or 64 numbers fill 4 or 7 words of ten."""
    d = 64
    spare = {"token": Fraction(want), "channel": Fraction(7 * 32, 64) + 1}
    assert Affine(bits, group, reduce).bits_a_number(d) == (spare[reduce] if bits == 3 else want)
    if reduce == "channel":
        assert Affine(bits, group).bits_a_number(d) == reference.bits_a_scalar(d, bits=bits, group=group)


def test_bits_of_the_other_codecs():
    book = np.zeros((1, 1, 8, 4, 2), np.float16)
    assert (AsIs().bits_a_number(16, jnp.float32), Cast("bfloat16").bits_a_number(16)) == (32, 16)
    assert ProductQuantized(book).bits_a_number(16) == 4


WRONG = [(dict(bits=5), "bits"), (dict(group=0), "groups"), (dict(reduce="head"), "groups"), (dict(store="int8"), "minima")]


@pytest.mark.parametrize("wrong, why", WRONG)
def test_refusals(wrong, why):
    with pytest.raises(ValueError, match=why):
        Affine(**wrong)
