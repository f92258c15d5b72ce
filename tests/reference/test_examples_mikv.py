"""Worked numbers of MiKV on the transcription and on kvjax's codec."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.codec import Affine
from kvjax.codec.balanced import balancer as balancer_of
from tests.reference import affine
from tests.reference.mikv import balancer, fraction, important

Q, K = np.array([[8, 0.5], [-2, 0.25]]), np.array([[0.5, 4], [2, -8]])


def test_the_balancer_leaves_products_and_levels_channels():
    b = balancer(Q[None], K)
    np.testing.assert_allclose(b, [2, 0.25])
    np.testing.assert_allclose(b * K, [[1, 1], [4, -2]])
    np.testing.assert_allclose(Q / b, [[4, 2], [-1, 1]])
    np.testing.assert_allclose((Q / b) @ (b * K).T, Q @ K.T)
    most, keys = jnp.abs(jnp.asarray(Q, jnp.float32)).max(0), jnp.asarray(K, jnp.float32)
    ours = balancer_of(most[None, None], keys[None, None], jnp.ones((1, 1, 2), bool))
    np.testing.assert_allclose(ours[0, 0], b)


def test_a_channel_without_keys_or_queries_is_left_alone():
    np.testing.assert_array_equal(balancer(np.array([[[0.0, 1, 0]]]), np.array([[1.0, 0, 0]])), [1, 1, 1])
    dead = balancer_of(jnp.array([[[0.0, 1, 0]]]), jnp.array([[[[1.0, 0, 0]]]]), jnp.ones((1, 1, 1), bool))
    np.testing.assert_array_equal(dead[0, 0], [1, 1, 1])


def test_what_balancing_is_for():
    k, q, b = np.array([[2, -8, 1, 0.5]]), np.array([8, 0.5, 4, 2]), np.array([2, 0.25, 2, 2])
    plain, level = (affine.quantise(x, bits=2, group=4, axis=1) for x in (k, b * k))
    np.testing.assert_array_equal(plain.codes, [[3, 0, 3, 3]])
    np.testing.assert_array_equal(level.codes, [[3, 0, 2, 2]])
    assert (affine.dequantise(plain) @ q, affine.dequantise(level) @ (q / b), k @ q) == pytest.approx((24, 18, 17))


@pytest.mark.parametrize("high, share_of_16", [(16, 0.325), (8, 0.23125), (4, 0.18125), (2, 0.15625)])
def test_bits(high, share_of_16):
    assert fraction(0.2, high, 2, 64) == pytest.approx(share_of_16)
    ours = [16 if bits == 16 else Affine(bits=bits, group=64).bits_a_number(128) for bits in (high, 2)]
    assert float(ours[0] + 4 * ours[1]) / 5 / 16 == pytest.approx(share_of_16)


def test_the_important_ones():
    assert [important(n, 0.2) for n in (1, 4, 5, 9, 10, 100)] == [0, 0, 1, 1, 2, 20]
