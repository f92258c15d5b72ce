"""Codebooks of keys: mini-batch k-means, and what becomes of too few points."""

import numpy as np
import pytest

import kvjax
from kvjax.calibrate.codebooks import collect_keys, fit, fit_codebooks, inertia, reseeded
from tests.conftest import ids_of
from tests.reference import hcattention as hc


def keys_of(n, layers=1, heads=2, d=8, seed=0):
    """Keys around 4 well separated places."""
    rng = np.random.default_rng(seed)
    places = rng.normal(size=(layers, heads, 4, d)) * 10
    return np.take_along_axis(places, rng.integers(0, 4, (layers, heads, n))[..., None], 2).astype(np.float32) + rng.normal(
        size=(layers, heads, n, d)
    ).astype(np.float32) * 0.01


@pytest.mark.parametrize("shared", [False, True])
def test_clusters_are_found(shared):
    keys = keys_of(400)
    centroids = 16 if shared else 4
    found = fit_codebooks(keys, groups=4, centroids=centroids, shared=shared)
    assert found["codebook"].dtype == np.float16 and found["codebook"].shape == (1, 2, 1 if shared else 4, centroids, 2)
    np.testing.assert_allclose(found["energy"], (keys.astype(np.float64) ** 2).sum((2, 3)), rtol=1e-5)
    for h in range(2):
        book = found["codebook"][0, h]
        lost = ((hc.decoded(hc.codes(keys[0, h], book), book) - keys[0, h]) ** 2).sum()
        np.testing.assert_allclose(found["inertia"][0, h], lost, rtol=0.05, atol=0.05)
        assert lost < 1e-3 * found["energy"][0, h]


def test_a_seed_gives_the_same_codebooks():
    keys = keys_of(200)
    one, two = (fit_codebooks(keys, groups=2, centroids=8)["codebook"] for _ in range(2))
    np.testing.assert_array_equal(one, two)


def test_more_centroids_lose_less():
    keys = np.random.default_rng(0).normal(size=(1, 1, 600, 4)).astype(np.float32)
    lost = [fit_codebooks(keys, groups=2, centroids=c)["inertia"][0, 0] for c in (1, 4, 16, 60)]
    assert lost == sorted(lost, reverse=True) and lost[-1] < 0.2 * lost[0]


def test_fewer_distinct_points_than_centroids():
    """Every point gets its own centroid; the copies that fill up are never the nearest."""
    points = np.repeat(np.eye(3, dtype=np.float32), 5, axis=0)
    book = fit(points, 6, seed=0, max_iter=5, batch=10)
    assert book.shape == (6, 3) and np.isfinite(book).all() and inertia(points, book) == 0
    assert set(hc.codes(points, book[None]).ravel()) == {0, 1, 2}


def test_an_empty_centroid_moves_to_the_worst_served_point():
    points = np.array([[0, 0], [0.1, 0], [5, 5], [9, 9]], np.float32)
    book = reseeded(np.array([[0, 0], [4, 4], [99, 99], [77, 77]], np.float32), points)
    np.testing.assert_array_equal(book, [[0, 0], [4, 4], [9, 9], [5, 5]])


def test_few_keys_are_warned_of_and_bad_sizes_refused():
    with pytest.warns(UserWarning, match="at least 80"):
        fit_codebooks(keys_of(79), groups=2, centroids=8)
    for bad in (dict(groups=3, centroids=4), dict(groups=2, centroids=0), dict(groups=2, centroids=65537)):
        with pytest.raises(ValueError, match="divide the head dimension 8"):
            fit_codebooks(keys_of(20), **bad)


def test_progress_counts_heads():
    seen = []
    fit_codebooks(keys_of(50, layers=2), groups=2, centroids=4, progress=lambda *x: seen.append(x))
    assert seen == [(i, 4) for i in range(1, 5)]


def test_collected_keys_are_those_of_prefill(lm):
    prompts = [ids_of(30), ids_of(41, 2)]
    keys = collect_keys(lm, prompts)
    assert keys.shape == (3, 2, 71, 16) and keys.dtype == np.float32
    rows = kvjax.prefill(lm, prompts).rows
    np.testing.assert_allclose(keys[1][:, :30], rows[0].k[1][0, :, :30], atol=1e-6)
    np.testing.assert_allclose(keys[1][:, 30:], rows[1].k[1][0, :, :41], atol=1e-6)
