"""The worked examples HC-1 to HC-7 and the published base lengths, on the transcription."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from . import heterocache as hc
from .heads import group_max, group_mean

FIRST = np.array([0.5, 0.03125, 0.0625, 0.25, 0.09375, 0.0625])
SECOND = np.array([0.0625, 0.3125, 0.25, 0.125, 0.125, 0.125])
PAIRS = np.array(
    [[1, 0.6, 0.7, 0.2, 0.1], [0.6, 1, 0.3, 0.2, 0.1], [0.7, 0.3, 1, 0.55, 0.1], [0.2, 0.2, 0.55, 1, 0.3], [0.1, 0.1, 0.1, 0.3, 1]]
)


@pytest.mark.parametrize("size, one, two, both", [(1, {0, 3}, {1, 2}, 0.0), (3, {0, 1}, {1, 2}, 0.5)])
def test_hc1_pool_top_and_overlap(size, one, two, both):
    assert hc.important(FIRST, 2, size) == one and hc.important(SECOND, 2, size) == two
    assert hc.overlap(one, two) == both
    np.testing.assert_allclose(hc.avg_pool(FIRST, 3), [0.177083, 0.197917, 0.114583, 0.135417, 0.135417, 0.052083], atol=1e-6)


def test_hc2_group_reduction():
    heads = np.array([[[0.75, 0.125, 0.0625, 0.03125, 0.03125], [0, 0.3125, 0.3125, 0, 0.375]]])
    assert hc.important(group_mean(heads)[0], 2, 1) == {0, 1}
    assert hc.important(group_max(heads)[0], 2, 1) == {0, 4}


def test_hc3_clustering():
    cluster = hc.star_clusters(PAIRS >= 0.5)
    assert cluster.tolist() == [0, 0, 0, -1, -1]
    assert hc.roles(cluster, np.array([0.8, 0.3, 0.6, 0.7, 0.4]), 0.5).tolist() == [3, 4, 4, 1, 2]


def test_hc4_median():
    assert np.median([0.9, 0.7, 0.2, 0.6, 0.8]) == 0.7 and abs(np.median([0.9, 0.7, 0.2, 0.6]) - 0.65) < 1e-12


STABLE = np.array([0.8, 0.4, 0.2, 0.5, 0.5])


def test_hc5_budgets():
    role = np.array([2, 3, 3, 4, 4, 4, 1, 1])
    r = hc.ratios(role, np.array([0.1, 0.9, 0.9, *STABLE]))
    base = hc.base_length(Fraction(1, 2), 8, 3, 100)
    assert base == 20 and (r[:3] == -1).all()
    np.testing.assert_allclose(r[3:], [0.490197, 0.980393, 1.960781, 0.784315, 0.784315], atol=1e-6)
    assert hc.lengths_floor(base, r[3:], 100).tolist() == [9, 19, 39, 15, 15]
    assert hc.lengths_exact(base, r[3:], 100).tolist() == [10, 19, 39, 16, 16]


def test_hc6_clipping():
    r = hc.ratios(np.full(5, 4), np.array([0.8, 0.4, 0.02, 0.5, 0.5]))
    base = hc.base_length(Fraction(3, 4), 8, 3, 100)
    np.testing.assert_allclose(r, [0.10823, 0.216459, 4.328976, 0.173167, 0.173167], atol=1e-6)
    assert base == 60 and hc.lengths_floor(base, r, 100).tolist() == [6, 12, 100, 10, 10]
    assert hc.lengths_exact(base, r, 100).tolist() == [32, 64, 100, 52, 52]


def scores_of(order: list[int]) -> np.ndarray:
    """Scores of ten positions whose best are `order`, best first."""
    scores = np.zeros(10)
    scores[order] = np.arange(len(order), 0, -1)
    return scores


def test_hc7_drift():
    pivot = hc.Monitor(reference={0, 1, 2, 3}, base=4, wanted=[2, 3], theta=0.5, w=3)
    assert [pivot.see(scores_of(s)) for s in ([0, 1, 2, 9], [0, 7, 8, 9], [0, 1, 8, 9])] == [None] * 3
    assert pivot.reference == {0, 1, 2, 3}
    assert [pivot.see(scores_of(s)) for s in ([7, 8, 9, 0], [6, 7, 8, 9])] == [None] * 2
    assert pivot.see(scores_of([9, 7, 8, 0])) == [[7, 9], [7, 8, 9]]
    assert pivot.reference == {0, 7, 8, 9} and pivot.medians == [0.5, 0.25]


@pytest.mark.parametrize(
    "share, heads, full, n, base",
    [
        ("0.5", 256, 50, 10_000, 3_786), ("0.5", 256, 50, 131_072, 49_629), ("0.3", 384, 80, 10_000, 1_157),
        ("0.3", 384, 80, 131_072, 15_176), ("0.5", 256, 37, 10_000, 4_155), ("0.5", 256, 37, 131_072, 54_463),
        ("0.6", 8, 3, 100, 36),
    ],
)  # fmt: skip
def test_published_base_lengths(share, heads, full, n, base):
    assert hc.base_length(Fraction(share), heads, full, n) == base


def test_a_share_that_full_heads_use_up_is_refused():
    with pytest.raises(ValueError, match="50/256"):
        hc.base_length(Fraction(50, 256), 256, 50, 1000)


@given(st.integers(0, 2**20), st.integers(1, 12), st.floats(0.05, 0.95))
def test_every_head_has_one_role_and_every_satellite_an_edge(seed, heads, density):
    rng = np.random.default_rng(seed)
    edges = rng.random((heads, heads)) < density
    edges = edges | edges.T
    cluster = hc.star_clusters(edges)
    role = hc.roles(cluster, rng.random(heads), 0.5)
    assert set(role) <= {1, 2, 3, 4}
    for h in np.flatnonzero(role == hc.SATELLITE):
        assert edges[h, cluster[h]] and role[cluster[h]] == hc.PIVOT
    for h in np.flatnonzero(role == hc.PIVOT):
        assert (role[cluster == h] == hc.SATELLITE).sum() >= 1
    assert not (edges & ~np.eye(heads, dtype=bool))[np.ix_(cluster < 0, cluster < 0)].any()


@given(st.integers(0, 2**20), st.integers(1, 30), st.integers(0, 200), st.integers(1, 200))
def test_floors_never_exceed_and_exact_meets_the_base(seed, heads, base, n):
    base = min(base, n)
    r = hc.ratios(np.full(heads, 4), np.random.default_rng(seed).random(heads))
    assert hc.lengths_floor(base, r, n).sum() <= base * heads == hc.lengths_exact(base, r, n).sum()
