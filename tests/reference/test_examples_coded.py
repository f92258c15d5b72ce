"""Worked examples of the codecs (Q7, Q8, Q10, Q11, A15) on their transcriptions, and the schedule they are run on."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import gear, kvquant, qjl, turboquant
from .coded import Coded, CodedHead, at_once, blocks
from .golden_methods import load
from .held import causal

GOLDEN = load("kvquant")


def test_a15_two_bits_of_the_engine():
    c = turboquant.levels(2, 4, normal=True)
    assert_allclose(c, [-0.755209, -0.226390, 0.226390, 0.755209], atol=1e-5)
    y = turboquant.sylvester(4) @ np.array([0.6, 0, 0.8, 0])
    assert_allclose(y, [0.7, 0.7, -0.1, -0.1], atol=1e-12)
    assert_array_equal(turboquant.codes(y, c, ties_up=True), [3, 3, 1, 1])
    found = turboquant.mse(np.array([[3.0, 0, 4, 0]]), 2, turboquant.sylvester(4), engine=True)
    assert_allclose(found, [[2.371422, 0, 4.401858, 0]], atol=1e-5)


def test_a15_values_with_halves_up():
    assert_allclose(turboquant.uniform(np.array([[-1, 0, 0.5, 2]]), 4), [[-1, 0, 0.6, 2]], atol=1e-3)


def test_q10_levels_and_their_error():
    for bits, level, lost in ((1, 0.8010, 0.3584), (2, 0.4521, 0.1145), (3, 0.2438, 0.0334)):
        c = turboquant.levels(bits, 64)
        assert_allclose(c[len(c) // 2] * 8, level, atol=5e-5)
        x = np.random.default_rng(0).standard_normal((3000, 64))
        found = turboquant.mse(x, bits, np.eye(64))
        assert_allclose(((found - x) ** 2).sum() / (x**2).sum(), lost, rtol=0.02)


@pytest.mark.parametrize("bits", [1, 3])
def test_q10_inner_products_are_not_biased(bits):
    x = np.random.default_rng(1).standard_normal((2000, 64))
    s = np.random.default_rng(2).standard_normal((64, 64))
    found = turboquant.inner_product(x, bits, turboquant.signed_hadamard(64, 0), s)
    assert_allclose((found * x).sum() / (x**2).sum(), 1, rtol=0.02)


def test_q11_rows_are_orthogonal_and_estimates_unbiased():
    s = qjl.orthogonal_rows(0, 32, 16)
    assert_allclose(s[:16] @ s[:16].T, 16 * np.eye(16), atol=1e-9)
    x = np.random.default_rng(1).standard_normal((4000, 16))
    assert_allclose((qjl.sketched(x, s) * x).sum() / (x**2).sum(), 1, rtol=0.04)


def test_q8_outliers_and_a_direction():
    filled, out = gear.outliers(np.array([[0.0, 1, 2, 3, -10, 12]]), 1, axis=1)
    assert_allclose(filled, [[0, 1, 2, 3, 4 / 3, 4 / 3]])
    assert_array_equal(out, [[0, 0, 0, 0, 1, 1]])
    x = np.array([[0.0, 1, 2, 3, -10, 12]])
    assert_allclose(gear.block(x, bits=2, group=6, axis=1, each=1, start=None), x, atol=1e-9)
    a, b = gear.power(np.outer([1, 2, 3], [2, 1, 2]), np.array([[1.0], [0], [0]]), 2)
    assert_allclose(np.abs(a[:, 0]), [0.267261, 0.534522, 0.801784], atol=1e-6)
    assert_allclose(a @ b.T, np.outer([1, 2, 3], [2, 1, 2]), atol=1e-12)


def test_q7_the_authors_numbers():
    key, mask = kvquant.keys(GOLDEN["key"], GOLDEN["lut"], GOLDEN["lower"], GOLDEN["upper"], 64, np.float64)
    assert_array_equal(mask, GOLDEN["key_outlier_mask"] == 1)
    assert_allclose(key, GOLDEN["key_nuq_sparse"], atol=2e-6)
    value, mask = kvquant.values(GOLDEN["value"], GOLDEN["lut"], 1, np.float64)
    assert_array_equal(mask, GOLDEN["value_outlier_mask"] == 1)
    assert_allclose(value, GOLDEN["value_nuq_dynamic_sparse"], atol=2e-6)


def test_a_head_whose_codec_does_nothing_attends_exactly():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 20, 8)), rng.normal(size=(20, 8)), rng.normal(size=(20, 8))
    for due in (at_once, blocks(4), lambda n: n):
        head = CodedHead(Coded(lambda x: x, due), Coded(lambda x: x, due))
        head.prompt(k[:9], v[:9])
        out = np.stack([head.step(q[:, t], k[t], v[t]) for t in range(9, 20)], 1)
        assert_allclose(out, causal(q[:, 9:], k, v), atol=1e-12)


def test_what_is_coded_when():
    side = Coded(lambda x: 0 * x, blocks(4), page=4, sinks=1)
    side.add(np.ones((10, 2)))
    side.flush()
    assert_array_equal(side.seen()[:, 0], [1, *[0] * 7, 1, 1])
    fresh = Coded(lambda x: 0 * x, lambda n: n)
    fresh.add(np.ones((1, 2)))
    assert fresh.seen()[0, 0] == 1  # exact in its own step
    fresh.flush()
    assert fresh.seen()[0, 0] == 0
