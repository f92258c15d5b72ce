"""LagKV: the worked example A4, block counts while decoding, short prompts, recorded presses."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .lagkv import block_scores, lag_cache, official, press_scores, spread
from .top_k import top_k

KEYS = np.array([[[9, 9], [0, 4], [2, 2], [1, 1], [0, 4], [4, 2], [2, 0], [7, 7]]], float)
VALUES = np.array([[[9, 9], [2, 2], [0, 4], [1, 3], [0, 1], [4, 2], [3, 3], [7, 7]]], float)


def test_a4_spreads_and_block_scores():
    s_k, s_v = block_scores(KEYS[0], VALUES[0], 1, 2, eps=0.0)
    assert_allclose(spread(KEYS[0, 1:7].reshape(3, 2, 2), 0.0), [[0.707107, 1.178511], [0.707107, 2.121320]], atol=5e-7)
    assert_allclose(spread(VALUES[0, 1:7].reshape(3, 2, 2), 0.0), [[1.060660, 1.060660], [2.121320, 1.414214]], atol=5e-7)
    assert_allclose(s_k, [[0.384284, 0.615716], [0.195570, 0.804430]], atol=5e-7)
    assert_allclose(s_v, [[0.5, 0.5], [0.669762, 0.330238]], atol=5e-7)
    assert_allclose(s_k + s_v, [[0.884284, 1.115716], [0.865332, 1.134668]], atol=5e-7)


@pytest.mark.parametrize("eps", [0.0, 1e-6])
def test_a4_official_keeps_half_of_each_block(eps):
    assert_array_equal(official(KEYS, VALUES, sinks=1, lag=2, ratio=0.5, eps=eps)[0], [0, 2, 4, 5, 6, 7])


def test_a4_press():
    score = press_scores(KEYS, VALUES, sinks=1, lag=2)[0]
    assert_allclose(score, [1, 0, 0.5, 0, 0.5, 1, 1, 1])
    protected = np.isin(np.arange(8), [0, 5, 6, 7])
    assert list(top_k(score, 6, protected)) == [0, 2, 4, 5, 6, 7]
    assert list(top_k(score, 4, protected)) == [0, 5, 6, 7]


def test_a_constant_channel_stays_finite():
    x = np.ones((3, 4, 2))
    x[..., 1] = np.arange(12).reshape(3, 4)
    assert np.isfinite(spread(x)).all()


def test_every_block_is_cut_once_and_counts_follow():
    rng, sinks, lag, ratio = np.random.default_rng(0), 3, 8, 0.25
    k, v = rng.normal(size=(2, 2, 100, 4))
    cache = lag_cache(2, 4, sinks=sinks, lag=lag, ratio=ratio)
    for t in range(100):
        before = [head.pos for head in cache.heads]
        cache.append(k[:, t : t + 1], v[:, t : t + 1])
        cache.compress()
        held, compressed = len(cache.heads[0].pos), max(0, (t + 1 - sinks) // lag - 1) * lag
        assert held == min(t + 1, sinks) + ratio * compressed + (max(0, t + 1 - sinks) - compressed)
        assert held - sinks - ratio * compressed <= 2 * lag - 1
        for head, old, key in zip(cache.heads, before, k, strict=True):
            assert_array_equal(head.k, key[head.pos])
            assert set(head.pos) <= {*old, t}
    decoded = [head.pos for head in cache.heads]
    assert_array_equal(decoded, official(k, v, sinks=sinks, lag=lag, ratio=ratio))


def test_short_prompts():
    rng = np.random.default_rng(1)
    k, v = rng.normal(size=(2, 1, 9, 4))
    assert_array_equal(official(k, v, sinks=2, lag=4, ratio=0.5)[0], np.arange(9))
    score = press_scores(k, v, sinks=2, lag=4)[0]
    assert list(top_k(score, 4)) == [0, 1, 7, 8]
    assert press_scores(k[:, :1], v[:, :1], sinks=2, lag=4).shape == (1, 1)


@golden.every_model
@pytest.mark.parametrize("press, cross", [("lagkv", False), ("lagkv_cross", True)])
def test_recorded_presses(name, press, cross):
    reference = golden.model(name).reference()
    for cell in golden.cells(name, press):
        for at in np.ndindex(reference["keys"].shape[:2]):
            k, v = reference["keys"][at], reference["values"][at]
            ours, n = press_scores(k, v, sinks=4, lag=16, cross=cross, eps=0.0), k.shape[1]
            assert_allclose(ours, cell.arrays["scores"][at], atol=1e-6)
            if golden.decided(cell):
                kept = [top_k(u, golden.kept_count(n, cell.ratio)) for u in ours]
                assert_array_equal(golden.mask(kept, n), cell.arrays["keep"][at])
