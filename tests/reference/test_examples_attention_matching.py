"""Attention Matching: the worked example A10, the authors' numbers, what it reduces to, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import attention_matching as am
from .golden_methods import load
from .softmax import softmax

K = np.array([[0.0], [0.0], [np.log(4)]])
V = np.array([[1.0, 0], [0, 1], [2, 2]])
Q = np.array([[1.0], [0], [-1]])
BOUNDS = {"low": am.TINY, "high": np.inf}


def test_a10_highest_and_fit():
    seen = am.look(Q, K)
    assert_allclose(am.rms(seen.p), [0.334873, 0.334873, 0.435087], atol=5e-7)
    assert sorted(am.highest(seen, 2)) == [0, 2]
    assert_allclose(seen.e[:, [0, 2]], [[0.25, 1], [1, 1], [1, 0.25]])
    assert_allclose(seen.total, [1.5, 3, 2.25])
    for steps in (0, 2):
        assert_allclose(am.fit_weights(seen, [0, 2], steps=steps), [2, 1])
    beta = np.log([2.0, 1.0])
    values = am.fit_values(seen, [0, 2], beta, V)
    assert_allclose(values, [[0.5, 0.5], [2, 2]], atol=1e-12)
    exact = [[1.5, 1.5], [1, 1], [2 / 3, 2 / 3]]
    assert_allclose(am.compacted(Q, K[[0, 2]], beta, values), exact)
    assert_allclose(seen.p @ V, exact)


def test_a10_eviction_alone():
    assert_allclose(am.compacted(Q, K[[0, 2]], np.zeros(2), V[[0, 2]]), [[1.8, 1.6], [1.5, 1], [1.2, 0.4]])


def test_a10_pursuit():
    seen = am.look(Q, K)
    first, b = am.pursuit(seen, 1)
    assert list(first) == [0]
    assert_allclose(b, [2.727273], atol=5e-7)
    chosen, b = am.pursuit(seen, 2)
    assert list(chosen) == [0, 2]
    assert_allclose(b, [2, 1])


@pytest.mark.parametrize("name, score", [("max", am.largest), ("rms", am.rms), ("mean", am.mean)])
def test_the_authors_highest_keys(name, score):
    data = load("attention_matching")
    seen = am.look(data["queries"], data["K"])
    chosen = am.highest(seen, int(data["t"]), score=score)
    assert_array_equal(chosen, data[f"hak_{name}_idx"])
    beta = np.log(am.fit_weights(seen, chosen, **BOUNDS))
    assert_allclose(beta, data[f"hak_{name}_beta"], atol=2e-5)
    assert_allclose(am.fit_values(seen, chosen, beta, data["V"]), data[f"hak_{name}_C2"], atol=2e-4)


def test_the_authors_box():
    data = load("attention_matching")
    seen, low, high = am.look(data["queries"], data["K"]), float(data["hak_box_lo"]), float(data["hak_box_hi"])
    chosen = am.highest(seen, int(data["t"]))
    assert_array_equal(chosen, data["hak_box_idx"])
    b = am.fit_weights(seen, chosen, low=low, high=high)
    assert (b == low).sum() == 4 and (b == high).sum() == 3
    assert_allclose(np.log(b), data["hak_box_beta"], atol=2e-5)
    assert_allclose(data["V"][chosen], data["hak_box_C2_direct"])


@pytest.mark.parametrize("scale", [am.spectral, am.frobenius, am.fixed])
def test_the_authors_ridge(scale):
    data = load("attention_matching")
    seen = am.look(data["queries"], data["K"])
    chosen = am.highest(seen, int(data["t"]))
    beta = np.log(am.fit_weights(seen, chosen, **BOUNDS))
    values = am.fit_values(seen, chosen, beta, data["V"], ridge=1e-3, scale=scale)
    assert_allclose(values, data[f"hak_rms_ridge_{scale.__name__}_C2"], atol=5e-4)


@pytest.mark.parametrize(
    "name, options", [("omp1", {}), ("omp2", {"picks": 2}), ("omp_int2", {"refit": 2}), ("omp_norm", {"normalised": True})]
)
def test_the_authors_pursuit(name, options):
    data = load("attention_matching")
    seen = am.look(data["queries"], data["K"])
    chosen, b = am.pursuit(seen, int(data["t"]), **options)
    assert_array_equal(chosen, data[f"{name}_idx"])
    assert_allclose(np.log(b), data[f"{name}_beta"], atol=2e-5)
    assert_allclose(am.fit_values(seen, chosen, np.log(b), data["V"]), data[f"{name}_C2"], atol=2e-4)


def test_projected_steps_lower_the_error_inside_the_box():
    data = load("attention_matching")
    seen = am.look(data["queries"], data["K"])
    chosen = am.highest(seen, int(data["t"]))
    box = {"low": 1.2, "high": 3.4}
    errors = [np.linalg.norm(seen.e[:, chosen] @ am.fit_weights(seen, chosen, steps=s, **box) - seen.total) for s in (0, 1, 2, 50)]
    assert errors == sorted(errors, reverse=True) and errors[0] > errors[2]
    assert 1.2 <= am.fit_weights(seen, chosen, steps=2, **box).min()


def test_no_bias_and_direct_values_are_eviction():
    data = load("attention_matching")
    chosen = am.highest(am.look(data["queries"], data["K"]), 12)
    k, v = data["K"][chosen], data["V"][chosen]
    plain = softmax(data["queries"] @ k.T / 4) @ v
    assert_allclose(am.compacted(data["queries"], k, np.zeros(12), v), plain)


def test_every_key_kept_changes_nothing():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(30, 4)), rng.normal(size=(8, 4)), rng.normal(size=(8, 4))
    seen = am.look(q, k)
    chosen, b = am.pursuit(seen, 8)
    assert_allclose(b, 1, atol=1e-6)
    values = am.fit_values(seen, chosen, np.log(b), v)
    assert_allclose(values, v[chosen], atol=1e-6)


def test_edges():
    seen = am.look(Q[:1], K[:1])
    chosen, b = am.pursuit(seen, 1)
    assert (list(chosen), list(b)) == ([0], [1.0])
    fewer = am.look(Q[:1], K)  # one query, two keys: the solution of least norm answers it exactly
    values = am.fit_values(fewer, [0, 2], np.zeros(2), V)
    assert_allclose(am.compacted(Q[:1], K[[0, 2]], np.zeros(2), values), fewer.p @ V)
