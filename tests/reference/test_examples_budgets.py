"""The worked examples of the specification for budgets: E15, E17 and the counter-example of exact_alloc."""

import numpy as np
import pytest

from .adaptive import adaptive, adaptive_rounded, flattened_counts
from .exact_alloc import exact_alloc
from .pyramid import pyramid_exact, pyramid_floor, pyramid_rounded
from .top_k import top_k
from .uniform import share_to_slots

TWO_HEADS = np.array([[0.9, 0.8, 0.7, 0.1], [0.3, 0.2, 0.06, 0.05]])


@pytest.mark.parametrize("n, past", [(23, [23] * 4), (30, [20] * 4), (42, [38, 26, 14, 2]), (100, [39, 27, 15, 3])])
def test_e15_pyramid_floors(n, past):
    assert list(pyramid_floor(4, 24, n, window=4, beta=20)) == past


def test_e15_pyramid_floors_exceed_the_total_where_exact_budgets_do_not():
    past = pyramid_floor(32, 128, 4096, window=8, beta=20)
    assert list(past[:2]) == [234, 227] and past[-1] == 17 and past.sum() == 4016
    exact = pyramid_exact(32, 128, 4096, window=8, beta=20)
    assert exact.sum() == 32 * 128 and (np.diff(exact) <= 0).all()


def test_beta_one_is_uniform():
    assert list(pyramid_exact(5, 24, 100, window=4, beta=1)) == [24] * 5


@pytest.mark.parametrize(
    "share, beta, budgets",
    [
        (0.25, 2, [36, 24, 12]),
        (0.5, 2, [72, 48, 24]),
        (0.75, 2, [88, 72, 56]),
        (0.25, 20, [24, 24, 24]),
        (0.5, 20, [88, 48, 8]),
    ],
)
def test_pyramid_rounded(share, beta, budgets):
    assert list(pyramid_rounded(3, share, 96, window=8, beta=beta)) == budgets


def test_e17_ada_kv():
    assert list(flattened_counts(TWO_HEADS, 4)) == [3, 1]
    rounded = {alpha: list(adaptive_rounded(TWO_HEADS, 2, alpha=alpha)) for alpha in (0.0, 0.2, 0.5)}
    assert rounded == {0.0: [3, 1], 0.2: [2, 1], 0.5: [2, 2]}
    counts = adaptive(TWO_HEADS, 2, alpha=0.5)
    assert [list(top_k(s, c)) for s, c in zip(TWO_HEADS, counts, strict=True)] == [[0, 1, 2], [0]]


def test_ada_kv_with_alpha_one_is_uniform():
    assert list(adaptive(TWO_HEADS, 2, alpha=1.0)) == [2, 2]


def test_exact_alloc_counter_example():
    weights = np.array([0.002378, 0.137034, 0.000316, 0.742190, 0.006488])
    budgets = exact_alloc(weights, 33, np.array([5, 2, 2, 2, 5]), np.array([25, 5, 20, 25, 30]))
    assert list(budgets) == [5, 3, 2, 18, 5]


def test_exact_alloc_ends_and_ties():
    lo, hi = np.array([1, 1, 1]), np.array([4, 4, 4])
    assert list(exact_alloc(np.ones(3), 99, lo, hi)) == [4, 4, 4]
    assert list(exact_alloc(np.ones(3), 2, lo, hi)) == [1, 1, 1]
    assert list(exact_alloc(np.zeros(3), 8, lo, hi)) == [3, 3, 2]


def test_exact_alloc_always_sums():
    rng = np.random.default_rng(0)
    for _ in range(200):
        lo = rng.integers(0, 5, 6)
        hi = lo + rng.integers(0, 30, 6)
        total = int(rng.integers(lo.sum(), hi.sum() + 1))
        budgets = exact_alloc(rng.exponential(size=6) ** 4, total, lo, hi)
        assert budgets.sum() == total and (lo <= budgets).all() and (budgets <= hi).all()


def test_shares_survive_the_last_bit():
    assert share_to_slots(100, 1 - 0.9) == 10 and share_to_slots(5, 0.01) == 1
