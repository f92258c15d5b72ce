"""Worked numbers of AsymKV on the transcription and on kvjax's codec."""

from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.codec import Affine
from kvjax.codec.affine import affine as codes_of
from tests.reference import affine
from tests.reference.asymkv import bits_a_scalar, bits_of

GROUP = np.array([-1, -0.8, 0.9, 1.1, 0.05])


def test_one_bit_is_the_minimum_or_the_maximum():
    block = affine.quantise(GROUP, bits=1, group=5, axis=0)
    np.testing.assert_array_equal(block.codes, [0, 0, 1, 1, 0])
    np.testing.assert_allclose(affine.dequantise(block), [-1, -1, 1.1, 1.1, -1])
    codes, scale, low = codes_of(jnp.asarray(GROUP, jnp.float32), 1, "float32")
    np.testing.assert_array_equal(codes[:4], [0, 0, 1, 1])  # the fifth is halfway: its code is float32's to say
    np.testing.assert_allclose((scale, low), (2.1, -1), rtol=1e-6)


def test_bits_by_layer():
    assert [bits_of(layer, 2, 1) for layer in range(3)] == [(2, 2), (2, 1), (1, 1)]


@pytest.mark.parametrize(
    "layers, key_layers, value_layers, bits",
    [(32, 16, 0, ("5/2", "2", "9/4")), (32, 32, 32, ("3", "3", "3")), (40, 40, 0, ("3", "2", "5/2"))],
)
def test_bits_a_number(layers, key_layers, value_layers, bits):
    assert bits_a_scalar(layers, key_layers, value_layers) == tuple(map(Fraction, bits))


def test_the_codecs_take_the_nominal_bits():
    for bits in (1, 2):
        assert Affine(bits=bits, group=32, reduce="token").bits_a_number(128) == bits + 1
        assert Affine(bits=bits, group=32, reduce="channel").bits_a_number(128) == bits + 1
