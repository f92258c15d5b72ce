"""Random Attention: the worked example A11, pinned tokens, edges."""

import numpy as np
from numpy.testing import assert_allclose

from .random_attention import kept, press, some_head_keeps, survival


def test_a11_kept():
    u = np.array([[0, 0, 0.2, 0.9, 0.5, 0.7, 0.1, 0]])
    assert kept(u, budget=5, prompt=2, recent=1).tolist() == [[0, 1, 3, 5, 7]]


def test_a11_chances():
    assert_allclose(some_head_keeps(0.4, 8), 0.983204, atol=5e-7)
    p = survival(2048, 128, 128)
    assert_allclose(p, 0.9375)
    assert_allclose(p**16, 0.356074, atol=5e-7)
    half_life = np.log(0.5) / np.log(p)
    assert_allclose(half_life, 10.74, atol=5e-3)
    assert round(half_life * 128) == 1375


def test_events_survive_at_that_rate():
    rng, budget, prompt, interval = np.random.default_rng(0), 64, 16, 16
    counts = np.zeros(budget + interval)
    for _ in range(2000):
        counts[kept(rng.random((1, budget + interval)), budget=budget, prompt=prompt, recent=0)[0]] += 1
    assert (counts[:prompt] == 2000).all()
    assert_allclose(counts[prompt:].mean() / 2000, survival(budget, prompt, interval))
    assert np.abs(counts[prompt:] / 2000 - 0.75).max() < 0.05


def test_edges():
    u = np.random.default_rng(1).random((2, 6))
    assert kept(u, budget=6, prompt=2, recent=1).tolist() == [list(range(6))] * 2
    assert kept(u, budget=3, prompt=2, recent=1).tolist() == [[0, 1, 5]] * 2
    assert kept(u[:, :1], budget=3, prompt=1, recent=1).tolist() == [[0]] * 2
    assert [len(j) for j in press(u, 4)] == [4, 4] and [list(j) for j in press(u[:, :1], 0)] == [[0], [0]]
