"""H2O's and TOVA's decode schedules: E2 and E4 step by step, and the loop that the other references use."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import h2o, tova
from .decode_head import decode_head
from .softmax import softmax
from .streaming import by_accumulated, by_last_row, evict_loop, rows_of

H2O_ROWS = np.array(
    [[1, 0, 0, 0, 0], [0.6, 0.4, 0, 0, 0], [0.2, 0.7, 0.1, 0, 0], [0.1, 0.5, 0.1, 0.3, 0], [0.15, 0.35, 0.2, 0.1, 0.2]]
)


def test_e2():
    rule = h2o.Decoding(1, 2)
    rule.prefill(H2O_ROWS[None])
    assert_array_equal(rule.held, [0, 3, 4])
    assert_allclose(rule.acc, [2.05, 0.4, 0.2])
    rule.step(np.array([[0.1, 0.5, 0.1, 0.3]]), 5)
    assert_array_equal(rule.held, [0, 4, 5])
    assert_allclose(rule.acc, [2.15, 0.3, 0.3])


def test_a_recent_heavy_hitter_takes_no_heavy_slot():
    assert list(h2o.kept(np.array([3.0, 1, 2, 9, 1]), 1, 2)) == [0, 3, 4]


def test_e2_prompt_only():
    rule = h2o.Decoding(1, 2, prompt_only=True)
    rule.prefill(H2O_ROWS[None])
    rule.step(np.array([[0.1, 0.5, 0.1, 0.3]]), 5)
    assert_array_equal(rule.held, [0, 3, 4, 5])


def test_e4():
    last = np.array([[0.10, 0.30, 0.05, 0.35, 0.20], [0.34, 0.02, 0.24, 0.10, 0.30]])
    assert list(tova.kept(last, 3)) == [0, 3, 4]
    assert [list(tova.kept(head[None], 3)) for head in last] == [[1, 3, 4], [0, 2, 4]]
    assert list(tova.kept(np.array([[0.4, 0.3, 0.2, 0.1]]), 3)) == [0, 1, 2]
    assert list(tova.kept(np.array([[0.4, 0.3, 0.2, 0.1]]), 3, protect_last=True)) == [0, 1, 3]


def random_layer(seed, heads=2, t=30):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(heads, 2, t, 8)), rng.normal(size=(heads, t, 8)), rng.normal(size=(heads, t, 8))


@pytest.mark.parametrize("seed", range(3))
def test_h2o_is_the_loop_of_accumulated_scores(seed):
    q, k, v = random_layer(seed, heads=1)
    steps = decode_head(h2o.Decoding(5, 4), q[0], k[0], v[0], 14)
    loop = evict_loop(rows_of(q[0], k[0]), 14, 16, score=by_accumulated, budget=9, recent=4)
    for step, held in zip(steps, loop, strict=True):
        assert_array_equal(step.held, held)


@pytest.mark.parametrize("seed", range(3))
def test_tova_of_one_kv_head_is_the_loop_of_last_rows(seed):
    q, k, v = random_layer(seed, heads=1)
    steps = tova.decode_layer(q, k, v, 14, 9)
    loop = evict_loop(rows_of(q[0], k[0]), 14, 16, score=by_last_row, budget=9)
    for step, held in zip(steps, loop, strict=True):
        assert_array_equal(step.held, held)


def test_tova_decides_once_for_all_heads():
    q, k, v = random_layer(1)
    together = tova.decode_layer(q, k, v, 14, 9)[0].held
    alone = [tova.decode_layer(q[h : h + 1], k[h : h + 1], v[h : h + 1], 14, 9)[0].held for h in range(2)]
    assert all(list(together) != list(one) for one in alone)
    swapped = tova.decode_layer(q[::-1], k[::-1], v[::-1], 14, 9)[0].held
    assert_array_equal(together, swapped)


def test_tova_in_chunks():
    q, k, v = random_layer(2)
    whole = tova.decode_layer(q, k, v, 20, 9)
    assert_array_equal(tova.decode_layer(q, k, v, 20, 9, chunk=50)[0].held, whole[0].held)
    one = tova.decode_layer(q, k, v, 20, 9, chunk=1)
    fed = tova.decode_layer(q, k, v, 1, 9)[19:]
    for a, b in zip(one, fed, strict=True):
        assert_array_equal(a.held, b.held)
    assert list(one[0].held) != list(whole[0].held)


def test_tova_by_hand():
    """One pair of numbers: the last query (1, 0) looks most at keys whose first entry is high."""
    q = np.zeros((1, 1, 5, 2))
    q[..., 0] = np.sqrt(2)
    k = np.array([[[3.0, 0], [1, 0], [2, 0], [0, 0], [1.5, 0]]])
    held = [list(s.held) for s in tova.decode_layer(q, k, k, 3, 2)]
    assert held == [[0, 2], [0, 2], [0, 2]]
    steps = tova.decode_layer(q, k, k, 3, 2, protect_last=True)
    assert [list(s.held) for s in steps] == [[0, 2], [0, 3], [0, 4]]
    assert_allclose(steps[1].out[0, 0, 0], softmax(np.array([3.0, 2, 0])) @ [3, 2, 0])
    assert_allclose(steps[2].out[0, 0, 0], softmax(np.array([3.0, 0, 1.5])) @ [3, 0, 1.5])


def test_h2o_by_hand():
    """Even attention: the oldest has most, and only the recent come and go."""
    q, k = np.zeros((1, 8, 2)), np.ones((8, 2))
    held = [list(s.held) for s in decode_head(h2o.Decoding(1, 2), q, k, k, 4)]
    assert held == [[0, 2, 3], [0, 3, 4], [0, 4, 5], [0, 5, 6], [0, 6, 7]]
