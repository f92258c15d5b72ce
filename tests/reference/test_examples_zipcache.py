"""Worked numbers of ZipCache, and the released code's codes, on the transcription and on kvjax's codecs."""

from fractions import Fraction
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.codec import ChannelRange, ChannelSeparable
from kvjax.codec.packing import unpack
from tests.reference import affine
from tests.reference.zipcache import by_channel, classes, saliency, separable

X = np.array([[1, 100, -0.5], [4, -50, 0.25], [-2, 25, 1]])
GOLDEN = Path(__file__).parents[1] / "data" / "golden_methods" / "zipcache.npz"


@pytest.fixture(scope="module")
def golden():
    with np.load(GOLDEN) as stored:
        return dict(stored)


def test_values():
    found = separable(X, 4)
    np.testing.assert_allclose(found.size, [2, 10, 1])
    np.testing.assert_array_equal(found.codes, [[1, 15, 0], [15, 0, 11], [0, 15, 9]])
    np.testing.assert_allclose(found.step, [0.7, 0.466667, 0.233333], atol=1e-6)
    np.testing.assert_allclose(found.low, [-0.5, -5, -1])
    np.testing.assert_allclose(np.abs(found.numbers() - X).max(0), [0.6, 0, 0.116667], atol=1e-6)
    plain = affine.dequantise(affine.quantise(X, bits=4, group=3, axis=1))
    np.testing.assert_allclose(np.abs(plain - X).max(0), [1.5, 0, 0.6], atol=1e-6)


def test_saliency():
    a = np.array([[1, 0, 0, 0], [0.6, 0.4, 0, 0], [0.5, 0.1, 0.4, 0], [0.4, 0.1, 0.2, 0.3]])
    np.testing.assert_allclose(saliency(a), [0.625, 0.2, 0.3, 0.3])
    np.testing.assert_array_equal(classes(saliency(a), 0.5), [True, False, True, False])
    np.testing.assert_array_equal(classes(saliency(a), 0.6), [True, False, True, True])  # int(0.4 · 4) = 1 is not salient


def heads(x):
    return jnp.asarray(x, jnp.float32)


def ours(codec, x):
    """(codes, numbers) of [b, h, n, d], all of them fitted to."""
    params = codec.fit(heads(x), jnp.ones(x.shape[:3], bool)) if codec.fitted else ()
    rows = codec.encode(heads(x), None, params)
    words = rows if isinstance(codec, ChannelRange) else rows.words
    return np.asarray(unpack(words, x.shape[-1], codec.bits)), np.asarray(codec.decode(rows, jnp.float32, params)), rows, params


def flat(x):
    """[1, h, n, d] as [n, h d], heads side by side."""
    return np.moveaxis(np.asarray(x)[0], 0, 1).reshape(x.shape[2], -1)


@pytest.mark.parametrize("bits", [2, 4])
def test_keys_as_released(golden, bits):
    codes, _, _, params = ours(ChannelRange(bits, store="float32"), golden["key"])
    np.testing.assert_array_equal(flat(codes), golden[f"k{bits}_codes"][0, 0])
    np.testing.assert_allclose(params.scale[0].reshape(-1), golden[f"k{bits}_scale"].reshape(-1), rtol=1e-6)
    np.testing.assert_allclose(params.low[0].reshape(-1), golden[f"k{bits}_min"].reshape(-1), rtol=1e-6)
    block = by_channel(flat(golden["key"]), bits, np.float32)
    np.testing.assert_array_equal(block.codes, golden[f"k{bits}_codes"][0, 0])


@pytest.mark.parametrize("bits", [2, 4])
def test_values_as_released(golden, bits):
    for codec in (ChannelSeparable(bits, store="float32"), ChannelSeparable(bits, block=96, store="float32")):
        codes, numbers, rows, _ = ours(codec, golden["value"])
        np.testing.assert_array_equal(flat(codes), golden[f"v{bits}_codes"][0])
        np.testing.assert_allclose(numbers, golden[f"v{bits}_dequant"], atol=4e-6)
        np.testing.assert_allclose(rows.scale[0, 0], golden[f"v{bits}_step"][0, :, 0], rtol=1e-6)
        np.testing.assert_allclose(rows.low[0, 1], golden[f"v{bits}_min"][0, :, 0], rtol=1e-6)
    found = separable(flat(golden["value"]), bits, np.float32)
    np.testing.assert_array_equal(found.codes, golden[f"v{bits}_codes"][0])


def test_two_classes_as_released(golden):
    numbers = np.zeros_like(golden["value"])
    for name, bits in (("important", 4), ("unimportant", 2)):
        ids = golden[f"mixed_{name}_ids"]
        part = np.take_along_axis(golden["value"], ids[..., None], 2)
        codes, again, _, size = ours(ChannelSeparable(bits, store="float32"), part)
        np.testing.assert_array_equal(flat(codes), golden[f"mixed_codes_{name}"][0])
        np.testing.assert_allclose(size[0].reshape(-1), golden[f"mixed_channel_scale_{name}"].reshape(-1), rtol=1e-6)
        np.put_along_axis(numbers, ids[..., None], again, 2)
    np.testing.assert_allclose(numbers, golden["mixed_value_dequant"], atol=4e-6)


def test_dead_channels_and_constant_rows_stay():
    x = np.zeros((1, 2, 8, 4))
    x[0, 1] = 3.0
    for codec in (ChannelRange(2), ChannelSeparable(2, block=4)):
        _, numbers, _, _ = ours(codec, x)
        np.testing.assert_allclose(numbers, x, atol=4e-3)


@pytest.mark.parametrize("codec", [ChannelRange(4), ChannelSeparable(4)])
def test_what_is_read_again_is_coded_the_same(codec):
    """Codes are stable, with the ranges they were made with."""
    x = np.random.default_rng(0).normal(size=(2, 2, 16, 8))
    params = codec.fit(heads(x), jnp.ones(x.shape[:3], bool)) if codec.fitted else ()
    once = codec.decode(codec.encode(heads(x), None, params), jnp.float32, params)
    twice = codec.decode(codec.encode(once, None, params), jnp.float32, params)
    np.testing.assert_allclose(once, twice, atol=4e-3)


def test_bits():
    assert ChannelRange(4).bits_a_number(128) == 4 and ChannelSeparable(2).bits_a_number(128) == 2 + 32 / 128
    assert ChannelSeparable(2, block=40).bits_a_number(128) == 2 + Fraction(32, 128) + Fraction(16, 40)
