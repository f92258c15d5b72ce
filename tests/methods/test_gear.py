"""GEAR's worked examples on the library's pieces, its bits, and its exact limits."""

from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.codec import Affine, LowRank, Outliers
from kvjax.codec.low_rank import factors
from kvjax.codec.outliers import without_ends
from tests.reference import gear as reference


def test_q8_outliers_are_taken_out():
    x = jnp.asarray([0, 1, 2, 3, -10, 12], jnp.float32)
    filled, value, index = without_ends(x, 1)
    np.testing.assert_allclose(filled, [0, 1, 2, 3, 4 / 3, 4 / 3], rtol=1e-6)
    np.testing.assert_array_equal(value, [-10, 12])
    np.testing.assert_array_equal(index, [4, 5])
    plain, kept = Affine(bits=2, group=6, store="float32"), Outliers(Affine(bits=2, group=6, store="float32"), each=1)
    lost = [float(jnp.abs(c.decode(c.encode(x[None, None, None]), jnp.float32) - x).max()) for c in (plain, kept)]
    np.testing.assert_allclose(lost, [3.666667, 0], atol=1e-5)


def test_q8_one_direction_is_found():
    error = jnp.outer(jnp.asarray([1.0, 2, 3]), jnp.asarray([2.0, 1, 2]))
    a, b = factors(error, jnp.asarray([[1.0], [0], [0]]), 2)
    sign = np.sign(np.asarray(a)[0, 0])
    np.testing.assert_allclose(sign * a[:, 0], [0.267261, 0.534522, 0.801784], atol=1e-6)
    np.testing.assert_allclose(sign * b[:, 0], [7.483315, 3.741657, 7.483315], atol=1e-5)
    np.testing.assert_allclose(a @ b.T, error, atol=1e-5)


@pytest.mark.parametrize("loops", [1, 3])
def test_factors_are_the_transcriptions(loops):
    """Q Qᵀ E, whatever the signs of Q's columns."""
    rng = np.random.default_rng(0)
    error, start = rng.standard_normal((32, 16)), rng.standard_normal((16, 4))
    a, b = factors(jnp.asarray(error, jnp.float32), jnp.asarray(start, jnp.float32), loops)
    slow = reference.power(error, start, loops)
    np.testing.assert_allclose(a @ b.T, slow[0] @ slow[1].T, atol=1e-4)


def test_no_error_has_no_rank():
    a, b = factors(jnp.zeros((8, 4)), jnp.ones((4, 2)), 3)
    assert jnp.isfinite(a).all()
    np.testing.assert_array_equal(b, 0)


def test_q8_bits():
    """2 bits, groups of 64, rank 4, 2 %: 3.656 where a block is 4,096 tokens of 128 channels and an outlier takes 32 bits."""
    backbone, rank = Affine(bits=2, group=64), LowRank(Affine(bits=2, group=64), size=4096, rank=4)
    low_rank = rank.bits_a_number(128) - backbone.bits_a_number(128)
    assert (backbone.bits_a_number(128), low_rank) == (Fraction(5, 2), Fraction(16 * 4 * (4096 + 128), 4096 * 128))
    assert float(backbone.bits_a_number(128) + low_rank + Fraction(32 * 2, 100)) == pytest.approx(3.656, abs=5e-4)


def test_full_rank_leaves_only_rounding():
    """As many directions as channels: the error is stored whole, in 16 bits."""
    x = jax.random.normal(jax.random.key(0), (1, 2, 64, 16))
    codec = LowRank(Affine(bits=2, group=16), size=32, rank=16)
    np.testing.assert_allclose(codec.decode(codec.encode(x), jnp.float32), x, atol=5e-3)


def test_each_part_brings_it_closer(lm, pre):
    full = kvjax.methods.full()
    how = dict(max_new_tokens=2, stop=(), return_logits=True)
    want = kvjax.decode(lm, kvjax.compress(pre, full), full, **how).logits[0, 1]
    errors = []
    for parts in (dict(rank=0, outliers=0), dict(rank=2, outliers=0), dict(rank=2), dict(rank=16, bits=4)):
        policy = kvjax.methods.gear(key_group=16, value_group=16, buffer=16, **parts)
        out = kvjax.decode(lm, kvjax.compress(pre, policy), policy, **how)
        errors.append(float(np.abs(out.logits[0, 1] - want).max()))
    assert errors[0] > errors[2] > errors[3] and errors[0] > errors[1] and errors[3] < 0.02
