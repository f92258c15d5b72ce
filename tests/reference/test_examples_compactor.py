"""Compactor: the worked example A19d, what the leverage is, edges."""

import numpy as np
from numpy.testing import assert_allclose

from .compactor import compactor, leverage
from .non_causal import non_causal, z_score

ROWS = np.array([[2.0, 0], [1, 0], [-1, 0], [-2, 1]])


def test_a19d():
    assert_allclose(leverage(ROWS, jitter=0.0), [0.464286, 0.107143, 0.678571, 0.75], atol=5e-7)
    assert_allclose(leverage(ROWS, jitter=0.0).sum(), 2)


def test_the_leverage_forgets_shifts_and_bases():
    rng = np.random.default_rng(0)
    x, a = rng.normal(size=(20, 4)), rng.normal(size=(4, 4))
    assert_allclose(leverage(x @ a + 7, jitter=0.0), leverage(x, jitter=0.0))


def test_a_full_sketch_changes_nothing_without_jitter():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(20, 4))
    assert_allclose(leverage(x, sketch=rng.normal(size=(4, 4)), jitter=0.0), leverage(x, jitter=0.0))
    narrow = leverage(x, sketch=rng.normal(size=(4, 2)), jitter=0.0)
    assert_allclose(narrow.sum(), 2)
    assert narrow.max() <= 1


def test_without_leverage_it_is_the_non_causal_score():
    rng = np.random.default_rng(2)
    q, (k, raw, v) = rng.normal(size=(2, 2, 30, 8)), rng.normal(size=(3, 2, 30, 8))
    u = compactor(q, k, raw, v, removed=0.0, sketch=None, chunk=10)
    assert_allclose(u[:, 8:26], non_causal(q, k, v, chunk=10)[:, 8:26])
    assert (u[:, :8] == u.max()).all() and (u[:, 26:] == u.max()).all()
    more = compactor(q, k, raw, v, removed=0.5, sketch=None, chunk=10)
    spanning = z_score(np.stack([leverage(x) for x in raw]))
    assert_allclose((more - u)[:, 8:26], 0.5 * spanning[:, 8:26])


def test_a_prompt_shorter_than_both_ends():
    rng = np.random.default_rng(3)
    q, (k, raw, v) = rng.normal(size=(1, 2, 5, 4)), rng.normal(size=(3, 1, 5, 4))
    u = compactor(q, k, raw, v, removed=0.5, sketch=rng.normal(size=(4, 48)))
    assert_allclose(u, u.max())
