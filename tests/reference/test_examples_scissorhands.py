"""Scissorhands' worked example (E3), its equivalent state, and what must hold at every step."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import scissorhands
from .decode_head import decode_head
from .softmax import softmax

ROWS = np.array([[0.5, 0.1, 0.1, 0.3, 0], [0.1, 0.1, 0.5, 0.1, 0.2], [0.3, 0.05, 0.3, 0.05, 0.3]])


def test_e3():
    rule = scissorhands.Decoding(4, window=3, recent=1, m=2, held=np.arange(5))
    rule.rows = [scissorhands.Row(np.arange(5), row) for row in ROWS]
    assert_array_equal(rule.counts(), [1, 3, 1, 2, 1])
    assert list(scissorhands.dropped(rule.counts(), 2, 1)) == [1, 3]
    rule.drop()
    assert_array_equal(rule.held, [0, 2, 4])


def test_a_uniform_share_is_not_below():
    assert list(scissorhands.below(np.array([0.2, 0.2, 0.2, 0.2, 0.2]))) == [0] * 5


def test_the_oldest_of_equals_goes_first():
    assert list(scissorhands.dropped(np.array([1, 2, 1, 2, 1, 0]), 3, 1)) == [0, 1, 3]
    assert list(scissorhands.dropped(np.zeros(5, int), 2, 2)) == [0, 1]


def random_head(seed, t, scale=2.0):
    rng = np.random.default_rng(seed)
    return scale * rng.normal(size=(2, t, 8)), rng.normal(size=(t, 8)), rng.normal(size=(t, 8))


@pytest.mark.parametrize("seed", range(3))
def test_half_goes_at_once_and_the_recent_stay(seed):
    q, k, v = random_head(seed, 60)
    steps = decode_head(scissorhands.Decoding(12, window=8, recent=3), q, k, v, 12)
    sizes = [len(s.held) for s in steps]
    assert sizes == ([12] + [7, 8, 9, 10, 11, 12] * 8)[: len(sizes)]
    for i, step in enumerate(steps):
        assert_array_equal(step.held[-3:], np.arange(9 + i, 12 + i))


def test_a_long_prompt_is_cut_to_the_budget():
    q, k, v = random_head(0, 41)
    steps = decode_head(scissorhands.Decoding(12, recent=3), q, k, v, 40)
    assert [len(s.held) for s in steps] == [12, 7]


@pytest.mark.parametrize("seed", range(3))
def test_counting_since_the_last_drop_is_the_same_where_drops_are_a_window_apart(seed):
    q, k, v = random_head(seed, 60)
    rule = scissorhands.Decoding(16, window=4, recent=2, m=4)
    rule.prefill(np.ones((2, 1, 1)))
    compared = 0
    for t in range(1, 60):
        at = np.append(rule.held, t)
        before = len(at)
        rule.see(softmax(q[:, t] @ k[at].T / np.sqrt(8)), t)
        if before > 16 and t > 16:
            assert_array_equal(rule.counts(), rule.counts_since())
            compared += 1
        rule.drop()
    assert compared >= 8


def test_counting_above_is_the_same_order_at_equal_age():
    """A >= 1 / S, lowest first, is the same as A < 1 / S, highest first, for tokens seen equally often."""
    above = (ROWS >= 0.2).sum(axis=0)
    counts = sum(scissorhands.below(row) for row in ROWS)
    assert_array_equal(counts, len(ROWS) - above)


def test_young_tokens_look_better():
    rule = scissorhands.Decoding(100)
    for t in range(20):
        rule.see(np.eye(1, t + 1), t)
    assert_array_equal(rule.counts()[1:], np.arange(19, 0, -1))


def test_only_the_last_rows_count():
    rule = scissorhands.Decoding(100, window=5)
    for t in range(20):
        rule.see(np.eye(1, t + 1), t)
    assert_array_equal(rule.counts(), [0, *[5] * 15, 4, 3, 2, 1])


def test_within_the_budget_is_full_attention():
    q, k, v = random_head(4, 12)
    last = decode_head(scissorhands.Decoding(12, recent=3), q, k, v, 1)[-1]
    assert_array_equal(last.held, np.arange(12))
    assert_allclose(last.out, softmax(q[:, -1] @ k.T / np.sqrt(8)) @ v)
