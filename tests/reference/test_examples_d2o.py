"""D2O's worked examples (D2O-1 to 8) and what must hold of every allocation, selection and merge."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from . import d2o
from .exact_alloc import exact_alloc

EVEN = np.array([[1, 0, 0, 0], [1 / 2, 1 / 2, 0, 0], [1 / 3, 1 / 3, 1 / 3, 0], [1 / 4] * 4])
PEAKED = np.array([[1, 0, 0, 0], [0.9, 0.1, 0, 0], [0.8, 0.1, 0.1, 0], [0.7, 0.1, 0.1, 0.1]])
KEYS = np.array([[1, 0], [0.6, 0.8], [0, 1], [1, 0.9], [-1, 0], [0, -1]])
STAY, GONE = [0, 2, 4, 5], [1, 3]


def budgets(shares, total, n):
    return list(exact_alloc(shares, total, np.zeros(len(shares), int), np.full(len(shares), n)))


def test_d2o_1_density_and_allocation():
    columns = np.stack([EVEN.sum(0), PEAKED.sum(0)])
    assert_allclose(columns, [[2.083333, 1.083333, 0.583333, 0.25], [3.4, 0.3, 0.2, 0.1]], atol=5e-7)
    measured = np.stack([d2o.variances(c[None, None])[0] for c in columns])
    assert_allclose(measured[:, 0], [0.638889, 2.566667], atol=5e-7)
    alpha = d2o.inverse_variance_softmax(d2o.raw(measured))
    assert_allclose(alpha, [0.873003, 0.126997], atol=5e-7)
    assert budgets(alpha, 100, 100) == [87, 13]
    normalised = d2o.layers_minmax(measured)
    assert_allclose(normalised, [0, 0.999999], atol=1e-6)
    alpha = d2o.inverse_variance_softmax(normalised)
    assert_allclose(alpha, [0.731058, 0.268942], atol=1e-6)
    assert budgets(alpha, 100, 100) == [73, 27]


def test_d2o_2_density_modes_disagree():
    measured = np.array([[0.2, 0.6, 1.0], [2, 3, 10]])
    assert_allclose(d2o.heads_minmax(measured), [0.499999, 0.375], atol=1e-6)
    assert_allclose(d2o.inverse_variance_softmax(d2o.heads_minmax(measured)), [0.468791, 0.531209], atol=1e-6)
    assert_allclose(d2o.raw(measured), [0.6, 5.0])
    assert_allclose(d2o.inverse_variance_softmax(d2o.raw(measured)), [0.987872, 0.012128], atol=5e-7)
    assert_allclose(d2o.reciprocal(d2o.raw(measured)), [0.892857, 0.107143], atol=5e-7)


def test_d2o_3_exact_rounding_and_caps():
    alpha = d2o.inverse_variance_softmax(np.array([0.1, 0.4, 1.0]))
    assert_allclose(30 * alpha, [13.9705, 10.3496, 5.6800], atol=1e-4)
    assert budgets(alpha, 30, 50) == [14, 10, 6]
    alpha = d2o.inverse_variance_softmax(np.array([0.0, 2.0, 3.0]))
    assert_allclose(48 * alpha, [40.50, 5.48, 2.02], atol=5e-3)
    assert budgets(alpha, 48, 20) == [20, 20, 8]


def test_exponential_decay_follows_the_rank_alone():
    assert_allclose(d2o.exponential_decay(np.array([5.0, 0.1, 9.0])), d2o.exponential_decay(np.array([2.0, 1.0, 3.0])))
    w = d2o.exponential_decay(np.array([5.0, 0.1, 9.0]))
    assert_allclose(w / w[1], np.exp([-0.1, 0.0, -0.2]))


@pytest.mark.parametrize("heavy, keep", [(3, [0, 2, 3, 4, 5]), (2, [0, 2, 4, 5])])
def test_d2o_4_selection(heavy, keep):
    s = np.array([2.0, 0.3, 0.9, 0.5, 0.4, 0.1])
    assert list(d2o.kept(s, heavy, 2, 1)) == keep


def test_d2o_5_merge():
    values = np.zeros((6, 2))
    values[1], values[2] = [1, 0], [0, 2]
    target, u = d2o.match(KEYS[GONE], KEYS[STAY])
    assert [STAY[j] for j in target] == [2, 0]
    assert_allclose(u, [0.8, 0.743294], atol=5e-7)
    tau = d2o.ema(u, None, 0.7)
    assert_allclose(tau, 0.771647, atol=5e-7)
    passes = u >= tau
    assert list(passes) == [True, False]
    for weights, key, value in (
        (d2o.softmax_weights, [0.270100, 0.909967], [0.450166, 1.099668]),
        (d2o.scatter_mean, [0.24, 0.82], [0.4, 1.0]),
        (d2o.average, [0.3, 0.9], [0.5, 1.0]),
    ):
        into = lambda x: d2o.merge(x[STAY], x[GONE][passes], target[passes], u[passes], weights)  # noqa: B023, E731
        assert_allclose(into(KEYS)[1], key, atol=5e-7)
        assert_allclose(into(values)[1], value, atol=5e-7)
        assert_allclose(np.delete(into(KEYS), 1, 0), np.delete(KEYS[STAY], 1, 0))


def test_d2o_6_threshold_follows():
    tau = d2o.ema(np.array([0.6]), 0.771647, 0.7)
    assert_allclose(tau, 0.651494, atol=5e-7)
    assert 0.6 < tau
    tau = d2o.ema(np.array([0.9]), tau, 0.7)
    assert_allclose(tau, 0.825448, atol=5e-7)
    assert 0.9 >= tau


def test_d2o_7_two_into_one():
    evicted, target, u = np.eye(3)[1:], np.array([0, 0]), np.array([0.9, 0.6])
    parts = d2o.merge(np.eye(3)[:1], evicted, target, u)[0]
    assert_allclose(np.e + np.exp(0.9) + np.exp(0.6), 7.000004, atol=5e-7)
    assert_allclose(parts, [0.388326, 0.351372, 0.260303], atol=5e-7)


def test_d2o_8_scores_accumulate():
    s, row = np.array([2.0, 0.9, 0.4, 0.1]), np.array([0.5, 0.1, 0.2, 0.1, 0.1])
    layer = d2o.Layer([d2o.Head(np.ones((4, 2)), np.ones((4, 2)), s, np.arange(4))], budget=9)
    layer.append(np.ones((1, 2)), np.ones((1, 2)), 4)
    layer.observe([row])
    assert_allclose(layer.heads[0].s, [2.5, 1.0, 0.6, 0.2, 0.1])


def random_layer(seed, budget, n=40, **how):
    rng = np.random.default_rng(seed)
    heads = [d2o.Head(rng.normal(size=(n, 4)), rng.normal(size=(n, 4)), rng.exponential(size=n), np.arange(n)) for _ in range(2)]
    return d2o.Layer(heads, budget, **how)


@pytest.mark.parametrize("budget", [4, 9, 24])
def test_sinks_and_recent_survive(budget):
    heavy, recent = d2o.split(budget)
    layer = random_layer(budget, budget, sinks=2)
    layer.evict()
    for head in layer.heads:
        assert len(head.pos) == budget == heavy + recent
        assert set(range(2)) | set(range(40 - recent, 40)) <= set(head.pos.tolist())


def test_threshold_beyond_reach_is_eviction_alone():
    layer = random_layer(0, 12, threshold=lambda best, tau, beta: np.inf)
    before = [(head.k, head.v) for head in layer.heads]
    layer.evict()
    for head, (k, v) in zip(layer.heads, before, strict=True):
        assert_allclose(head.k, k[head.pos])
        assert_allclose(head.v, v[head.pos])


@pytest.mark.parametrize("seed", range(5))
def test_merged_rows_stay_in_the_hull_of_their_inputs(seed):
    rng = np.random.default_rng(seed)
    kept, evicted = rng.normal(size=(3, 2)), rng.normal(size=(8, 2))
    target, u = d2o.match(evicted, kept)
    for weights in (d2o.softmax_weights, d2o.average):
        out = d2o.merge(kept, evicted, target, u, weights)
        for direction in rng.normal(size=(50, 2)):
            for j in range(3):
                inputs = np.vstack([kept[j], evicted[target == j]])
                assert (out[j] @ direction) <= (inputs @ direction).max() + 1e-12


def test_a_key_merged_into_its_equal_does_not_change():
    k = np.array([[1.0, 2.0], [3.0, -1.0]])
    target, u = d2o.match(k[:1], k)
    assert_allclose(d2o.merge(k, k[:1], target, u), k)


def test_a_zero_key_resembles_nothing():
    assert d2o.match(np.zeros((1, 2)), KEYS[STAY])[1] == 0


@pytest.mark.parametrize("budget, parts", [(1, (0, 1)), (2, (1, 1)), (3, (2, 1)), (4, (3, 1)), (100, (75, 25))])
def test_there_is_always_a_recent_slot(budget, parts):
    assert d2o.split(budget) == parts


def test_layer_budgets_sum():
    rng = np.random.default_rng(0)
    for _ in range(50):
        shares = d2o.inverse_variance_softmax(rng.exponential(size=8) * 4)
        total, n = int(rng.integers(8, 8 * 90)), 90
        got = d2o.layer_budgets(shares, total, n)
        assert got.sum() == total and got.max() <= n
