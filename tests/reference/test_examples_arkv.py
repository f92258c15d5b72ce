"""Worked numbers of ARKV on the transcription and on kvjax's stages."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.allocate.origin_shares import kurtosis, log_quality, origin_slots
from kvjax.allocate.preference import entropy_and_variance
from kvjax.codec import Fp8
from kvjax.encode.tier_rule import TierView
from kvjax.tiers import OriginFirst
from tests.reference.arkv import T, cut, fp8, origin, quality, split


def test_origin_shares():
    oq = np.array([2.0, 5, 1])
    np.testing.assert_array_equal(origin(oq, 512, 32, 4096), [192, 480, 96])
    ours = origin_slots(jnp.log(jnp.asarray(oq, jnp.float32))[:, None], 480, jnp.full((3, 1), 4096, jnp.int32))
    np.testing.assert_array_equal(ours[:, 0], [192, 480, 96])


@pytest.mark.parametrize("share, exact, coded", [(192, 160, 200), (480, 360, 0), (96, 64, 296)])
def test_a_cut_at_513(share, exact, coded):
    assert split(481, share, 32) == (exact, coded, 121)
    p = np.random.default_rng(share).permutation(513).astype(np.float32)
    stays, eight = cut(p, np.arange(513), np.zeros(513, bool), 513, share, 32)
    assert (stays.sum(), eight.sum()) == (392, coded)
    tier = lambda valid: TierView(jnp.asarray(p)[None, None], jnp.arange(513)[None, None], jnp.full((1, 1, 513), valid))  # noqa: E731
    first, second = OriginFirst(512, 32).after_step(
        (tier(True), tier(False)), (), jnp.asarray([513]), jnp.full((1, 1), share, jnp.int32)
    )
    np.testing.assert_array_equal(np.asarray(first)[0, 0], np.where(~stays, -1, np.where(eight, 1, 0)))
    assert (np.asarray(second) != 0).all()


def test_quality():
    a = np.random.default_rng(0).dirichlet(np.ones(30), (2, 2, 8)).astype(np.float32)
    rows, real, before = jnp.asarray(a)[None], jnp.ones((1, 8), bool), jnp.ones((1, 2, 30), bool)
    parts = *entropy_and_variance(rows, real, before), kurtosis(rows, real, before)
    np.testing.assert_allclose(np.exp(log_quality(parts, T)), quality(a), rtol=1e-5)
    entropy, _ = entropy_and_variance(jnp.asarray([[[[[0.7, 0.2, 0.1]]]]]), jnp.ones((1, 1), bool), jnp.ones((1, 1, 3), bool))
    np.testing.assert_allclose(entropy, 0.801819, atol=1e-6)


def test_eight_bits():
    row = np.array([[0.1, -2.24, 1.12]])
    codec = Fp8(scaled=True)
    rows = codec.encode(jnp.asarray(row, jnp.float32)[None, None])
    np.testing.assert_allclose(rows.scale[0, 0], [0.005], rtol=1e-3)
    np.testing.assert_allclose(codec.decode(rows, jnp.float32)[0, 0], row, rtol=2**-4)
    x = np.random.default_rng(0).normal(size=(20, 16))
    once = codec.decode(codec.encode(jnp.asarray(x, jnp.float32)[None, None]), jnp.float32)
    np.testing.assert_allclose(once[0, 0], fp8(x), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(codec.decode(codec.encode(once), jnp.float32), once, rtol=2e-3)
    assert codec.bits_a_number(128) == 8 + 16 / 128
    np.testing.assert_array_equal(codec.decode(codec.encode(jnp.zeros((1, 1, 2, 4))), jnp.float32), np.zeros((1, 1, 2, 4)))
