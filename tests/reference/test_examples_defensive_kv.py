"""DefensiveKV's worked examples (E18), its reduction and what must hold of every selection."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import defensive_kv as dk
from .attention import attention_rows
from .highest import highest


def bare(u):
    """A layer without a window and without anything forced."""
    u = np.array(u, float)
    return dk.Layer(u, np.zeros(u.shape, bool), 0)


def test_e18_worst_case_with_a_floor():
    a = np.array([[[0.3, 0, 0, 0.4], [0.3, 0, 0.1, 0]], [[0.3, 0.5, 0, 0], [0.3, 0.1, 0, 0]]])[None]
    assert_allclose(a.mean(axis=(1, 2))[0], [0.3, 0.15, 0.025, 0.1])
    assert list(highest(a.mean(axis=(1, 2))[0], 2)) == [0, 1]
    assert_allclose(a.max(axis=(1, 2))[0], [0.3, 0.5, 0.1, 0.4])
    u = dk.risk(a, size=1)[0]
    assert_allclose(u, [0.325, 0.5, 0.325, 0.4])
    assert list(highest(u, 2)) == [1, 3]


def test_e18_values_decide_between_heads():
    u = np.array([[0.325, 0.5, 0.325, 0.4], [0.2, 0.2, 0.6, 0.2]])
    weighed = dk.weigh(u, np.array([[3.0, 1, 1, 1], [1, 1, 1, 3]]))
    assert_allclose(weighed, [[0.24375, 0.25, 0.1625, 0.1], [0.05, 0.1, 0.3, 0.15]])
    kept = dk.defensive(bare(weighed), 0.5)
    assert [list(head) for head in kept] == [[0, 1, 2], [2]]


@pytest.mark.parametrize("threshold, count", [(0.9, 3), (0.6, 1), (0.45, 0)])
def test_e18_forced_counts(threshold, count):
    assert dk.crossing(np.array([0.5, 0.2, 0.15, 0.1, 0.05]), threshold) == count


LAYERS = [
    [[0.9, 0.8, 0.15, 0.05], [0.7, 0.2, 0.1, 0.05]],
    [[0.3, 0.2, 0.1, 0.05], [0.6, 0.02, 0.01, 0.01]],
]


def test_e18_model_wide_and_per_layer():
    layers = [bare(u) for u in LAYERS]
    assert list(dk.layer_counts(layers, 8)) == [5, 3]
    kept = dk.layer_defensive(layers, 0.5)
    assert [[list(head) for head in layer] for layer in kept] == [[[0, 1, 2], [0, 1]], [[0, 1], [0]]]
    kept = [dk.defensive(layer, 0.5) for layer in layers]
    assert [[list(head) for head in layer] for layer in kept] == [[[0, 1], [0, 1]], [[0, 1, 2], [0]]]


def random_layer(seed, ratio, n=40, w=4, **switches):
    rng = np.random.default_rng(seed)
    q, k = 2 * rng.normal(size=(2, 3, w, 8)), rng.normal(size=(2, n, 8))
    v, w_o = rng.normal(size=(2, n, 8)), rng.normal(size=(2, 3, 8, 48))
    rows = attention_rows(q, k)
    return rows, dk.layer_of(rows, v, w_o, ratio, **switches)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("ratio", [0.2, 0.35, 0.5])
@pytest.mark.parametrize("release_bias", [True, False])
def test_window_and_forced_survive_and_the_total_is_exact(seed, ratio, release_bias):
    layer = random_layer(seed, ratio, release_bias=release_bias)[1]
    kept = dk.defensive(layer, ratio)
    assert sum(map(len, kept)) == int(40 * 2 * ratio + 1e-9)
    for h, head in enumerate(kept):
        assert set(np.flatnonzero(layer.forced[h])) | set(range(36, 40)) <= set(head.tolist())


@pytest.mark.parametrize("seed", range(3))
def test_one_layer_is_defensive(seed):
    layer = random_layer(seed, 0.3)[1]
    for one, other in zip(dk.layer_defensive([layer], 0.3)[0], dk.defensive(layer, 0.3), strict=True):
        assert_array_equal(one, other)
    for one, other in zip(dk.layer_defensive([layer], 0.3, above_all=False)[0], dk.defensive(layer, 0.3), strict=True):
        assert_array_equal(one, other)


def test_a_weak_layer_keeps_its_window_where_protected_is_above_all():
    strong = dk.Layer(np.linspace(1, 2, 20)[None].repeat(2, 0), np.zeros((2, 20), bool), 4)
    weak = dk.Layer(np.full((2, 20), 0.01), np.zeros((2, 20), bool), 4)
    kept = dk.layer_defensive([strong, weak], 0.4)
    assert sum(len(head) for layer in kept for head in layer) == 38
    assert all(set(range(20, 24)) <= set(head.tolist()) for head in kept[1])
    own = dk.layer_defensive([strong, weak], 0.4, above_all=False)
    assert sum(len(head) for layer in own for head in layer) == 38
    assert sum(len(head) for head in own[1]) < 8
    tight = dk.Layer(strong.u, np.ones((2, 20), bool), 4)
    assert [list(head) for head in tight.kept(8)] == [[20, 21, 22, 23]] * 2


def test_everything_kept_is_the_identity():
    layer = random_layer(0, 1.0)[1]
    for head in dk.defensive(layer, 1.0):
        assert_array_equal(head, np.arange(40))


def test_query_heads_of_a_group_may_be_swapped():
    rng = np.random.default_rng(7)
    rows = attention_rows(rng.normal(size=(2, 3, 4, 8)), rng.normal(size=(2, 40, 8)))
    v, w_o = rng.normal(size=(2, 40, 8)), rng.normal(size=(2, 3, 8, 48))
    one, other = dk.layer_of(rows, v, w_o, 0.3), dk.layer_of(rows[:, ::-1], v, w_o[:, ::-1], 0.3)
    assert_allclose(one.u, other.u)
    assert_array_equal(one.forced, other.forced)


@pytest.mark.parametrize("size", [1, 3, 5])
def test_pooling_keeps_each_rows_mass(size):
    a = np.random.default_rng(0).random((2, 3, 4, 9))
    a[0, 0, 0] = 0
    assert_allclose(dk.mass_preserving_pool(a, size).sum(-1), a.sum(-1))
    assert_allclose(dk.mass_preserving_pool(a, 1), a)


def test_shares_of_values_sum_to_one_over_the_heads():
    rng = np.random.default_rng(1)
    w = dk.value_size(rng.normal(size=(3, 5, 4)), rng.normal(size=(3, 2, 4, 8)))
    assert_allclose(dk.weigh(np.ones((3, 5)), w).sum(axis=0), 1)


def test_the_two_biases():
    """Columns .4 .2 .1 .1 and a window of .1 .1. Release: a = [.5 .25 .125 .125], bias .1 + .1, threshold .69: one is forced.
    The window's own mass: a as it is, bias .2, threshold .69: two are."""
    rows = np.array([0.4, 0.2, 0.1, 0.1, 0.1, 0.1])[None, None, None].repeat(2, axis=2)
    assert list(np.flatnonzero(dk.forced(rows, 1.0, threshold=0.89)[0])) == [0]
    assert list(np.flatnonzero(dk.forced(rows, 1.0, threshold=0.89, release_bias=False)[0])) == [0, 1]


def test_the_bias_is_one_number_for_the_heads_of_a_layer():
    """Two heads, W = 2: the last two columns before the window have .05 and .5, the bias is .275, the threshold .635.

    Made to sum to 1, the columns cover .556 .778 and .3125 .625 .75: one and two are forced; by head two and none.
    """
    older = np.array([[0.5, 0.2, 0.1, 0.05, 0.03, 0.02], [0.1, 0.1, 0.05, 0.05, 0.25, 0.25]])
    window = np.repeat((1 - older.sum(1))[:, None] / 2, 2, 1)
    rows = np.concatenate([older, window], 1)[:, None, None].repeat(2, 2)
    assert dk.forced(rows, 1.0, threshold=0.91).sum(1).tolist() == [1, 2]


def test_forced_is_clamped_to_the_budget():
    """Of 12 columns 10 are before the window: at most int(10 · 0.5) - 2."""
    rows = np.full((1, 1, 2, 12), 1 / 12)
    assert dk.forced(rows, 0.5, threshold=0.99)[0].sum() == 3
    assert dk.forced(rows, 0.1, threshold=0.99)[0].sum() == 0
