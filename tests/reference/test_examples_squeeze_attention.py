"""SqueezeAttention's worked example (E19) and what must hold of every allocation."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import squeeze_attention as squeeze

COS = np.array([0.55, 0.60, 0.75, 0.80, 0.78, 0.95, 0.96, 0.94])


def test_e19():
    group = squeeze.clusters(COS)
    assert list(group) == [0, 0, 1, 1, 1, 2, 2, 2]
    assert_allclose([COS[group == g].mean() for g in range(3)], [0.575, 0.7767, 0.95], atol=5e-5)
    found = squeeze.budgets(group, 8, 100, 35, 10_000)
    assert list(found) == [139] * 5 + [35] * 3 and found.sum() == 800
    assert_array_equal(squeeze.exact_budgets(group, 8, 100, 35, 10_000), found)


def test_cosine_of_the_residual_stream():
    before = np.array([[[1.0, 0], [0, 2]], [[3, 4], [0, 0]]])
    after = np.array([[[1.0, 1], [0, 5]], [[3, 4], [1, 0]]])
    assert_allclose(squeeze.cosines(before, after), [(np.sqrt(0.5) + 1) / 2, 0.5])


@pytest.mark.parametrize("c", [[0.5], [0.5, 0.9], [0.5, 0.5, 0.9, 0.9], [0.7, 0.7, 0.7]])
def test_fewer_than_three_values_are_uniform(c):
    group = squeeze.clusters(np.array(c))
    assert group is None
    assert list(squeeze.budgets(group, len(c), 100, 35, 500)) == [100] * len(c)
    assert list(squeeze.exact_budgets(group, len(c), 100, 35, 80)) == [80] * len(c)


@pytest.mark.parametrize("seed", range(5))
def test_clusters_are_ordered_and_follow_their_layers(seed):
    rng = np.random.default_rng(seed)
    c = rng.random(11)
    group = squeeze.clusters(c)
    assert set(group) == {0, 1, 2}
    assert c[group == 0].max() < c[group == 1].min() and c[group == 1].max() < c[group == 2].min()
    shuffled = rng.permutation(11)
    assert_array_equal(squeeze.clusters(c[shuffled]), group[shuffled])


@pytest.mark.parametrize("seed", range(5))
def test_no_other_cuts_have_less_error(seed):
    c = np.random.default_rng(seed).random(9)
    group, x = squeeze.clusters(c), np.sort(c)
    found = sum(squeeze.error(c[group == g]) for g in range(3))
    for i in range(1, 8):
        for j in range(i + 1, 9):
            assert found <= sum(map(squeeze.error, (x[:i], x[i:j], x[j:]))) + 1e-12


@pytest.mark.parametrize("seed", range(10))
def test_totals(seed):
    rng = np.random.default_rng(seed)
    layers, init = int(rng.integers(3, 20)), int(rng.integers(10, 200))
    group = squeeze.clusters(rng.random(layers))
    least = int(0.35 * init)
    truncated = squeeze.budgets(group, layers, init, least, 10**6)
    exact = squeeze.exact_budgets(group, layers, init, least, 10**6)
    assert exact.sum() == layers * init
    assert 0 <= layers * init - truncated.sum() < (group != 2).sum()
    assert (exact - truncated >= 0).all() and (exact - truncated <= 1).all()
    assert (exact[group == 2] == least).all()


def test_equal_parts_are_uniform():
    assert list(squeeze.budgets(squeeze.clusters(COS), 8, 100, 100, 500)) == [100] * 8


def test_the_prompt_is_the_cap():
    assert list(squeeze.budgets(squeeze.clusters(COS), 8, 100, 35, 120)) == [120] * 5 + [35] * 3
