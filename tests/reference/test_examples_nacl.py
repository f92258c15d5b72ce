"""NaCL's worked example (E9) and what must hold of every selection."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import nacl
from .highest import highest_of

U = np.array([0.30, 0.05, 0.20, 0.02, 0.03, 0.10, 0.15, 0.05, 0.06, 0.04])


def test_e9():
    assert list(highest_of(U, 2, (np.arange(10) >= 1) & (np.arange(10) < 8))) == [2, 6]
    rest = U[[1, 3, 4, 5, 7]]
    assert_allclose(nacl.chances(rest), [0.1999, 0.1940, 0.1960, 0.2102, 0.1999], atol=5e-5)
    assert_allclose(rest / rest.sum(), [0.2, 0.08, 0.12, 0.4, 0.2])
    noise = np.zeros(10)
    noise[4] = 1
    assert list(nacl.kept(U, noise, sinks=1, recent=2, best=2, sampled=1)) == [0, 2, 4, 6, 8, 9]
    assert list(nacl.kept(U, np.zeros(10), sinks=1, recent=2, best=2, sampled=1)) == [0, 2, 5, 6, 8, 9]


@pytest.mark.parametrize(
    "n, sinks, expected",
    [(1000, 256, (9, 1)), (100, 256, (4, 1)), (100, 2, (2, 3)), (40_000, 256, (256, 144)), (1, 256, (0, 1))],
)
def test_first_and_last(n, sinks, expected):
    assert nacl.protected(n, sinks) == expected


def test_protected_slots_are_a_hundredth_of_a_long_prompt():
    for n in (500, 2048, 30_000):
        assert sum(nacl.protected(n)) == n // 100


def random_heads(seed, n):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(2, 3, n, 8)), rng.normal(size=(2, n, 8)), rng.gumbel(size=(2, n))


@pytest.mark.parametrize("n", [500, 600, 1000])
def test_a_fifth_stays(n):
    q, k, noise = random_heads(n, n)
    first, last = nacl.protected(n)
    for head in nacl.compress(q, k, noise):
        assert len(head) == n // 5
        assert_array_equal(head[:first], np.arange(first))
        assert_array_equal(head[-last:], np.arange(n - last, n))
        assert (np.diff(head) > 0).all()


def test_no_mask_means_that_proxies_see_later_keys():
    q, k, _ = random_heads(0, 20)
    u = nacl.proxy_scores(q[:, :, :1], k)
    assert (u > 0).all()
    assert_allclose(u.sum(axis=1), 1)
    assert_allclose(nacl.proxy_scores(q[:, :, -5:], k).sum(axis=1), 5)


def test_noise_draws_what_the_chances_say():
    rng = np.random.default_rng(0)
    u = np.array([0.0, 3.0, 2.0, 1.0, 0.0])
    counts = np.zeros(5)
    for _ in range(4000):
        counts[nacl.kept(u, rng.gumbel(size=5), sinks=0, recent=0, best=0, sampled=1)] += 1
    assert_allclose(counts / 4000, nacl.chances(u), atol=0.03)


def test_the_best_never_depend_on_the_noise():
    rng = np.random.default_rng(1)
    for _ in range(20):
        assert {0, 2, 6, 8, 9} <= set(nacl.kept(U, rng.gumbel(size=10), sinks=1, recent=2, best=2, sampled=2).tolist())


@pytest.mark.parametrize("n", [1, 3, 8])
def test_short_prompts_keep_at_least_the_protected(n):
    q, k, noise = random_heads(0, n)
    for head in nacl.compress(q, k, noise):
        assert len(head) == min(n, 5)


def test_counts_beyond_the_candidates_keep_everything():
    assert_array_equal(nacl.kept(U, np.zeros(10), sinks=1, recent=2, best=5, sampled=9), np.arange(10))
