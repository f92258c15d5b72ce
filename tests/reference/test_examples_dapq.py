"""DapQ's worked example (E12) and what must hold of every selection."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import dapq
from .attention import attention_rows
from .highest import highest
from .window_attention import window_attention


def test_e12():
    rows = np.zeros((1, 1, 2, 7))
    rows[0, 0, :, :5] = [[0.05, 0.4, 0.05, 0.3, 0.1], [0.05, 0.1, 0.05, 0.5, 0.2]]
    u = dapq.pseudo_scores(rows, 5)[0]
    assert_allclose(u, [0.1, 0.5, 0.1, 0.8, 0.3])
    assert list(highest(u, 2)) == [1, 3]


def random_heads(seed, n=30, w=4):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(2, 3, w, 8)), rng.normal(size=(2, n + w, 8))


@pytest.mark.parametrize("budget", [1, 7, 29])
def test_the_budget_is_met_with_prompt_positions(budget):
    for head in dapq.kept(*random_heads(0), budget):
        assert len(set(head.tolist())) == budget and head.max() < 30


@pytest.mark.parametrize("n", [1, 5, 6])
def test_a_prompt_within_the_budget_stays(n):
    for head in dapq.kept(*random_heads(1, n=n), 6):
        assert_array_equal(head, np.arange(n))


def test_columns_do_not_sum_to_one():
    q, k = random_heads(2)
    u = dapq.pseudo_scores(attention_rows(q, k), 30)
    assert (u.sum(axis=1) < 4).all() and (u.sum(axis=1) > 0).all()


def test_it_is_an_unpooled_window_that_is_thrown_away():
    q, k = random_heads(3)
    window = window_attention(q, k, window=4, size=1)
    assert_allclose(dapq.pseudo_scores(attention_rows(q, k), 30), 4 * window)


def test_recent_tokens_stay_where_asked():
    for head in dapq.kept(*random_heads(4), 7, recent=3):
        assert len(head) == 7
        assert_array_equal(head[-3:], [27, 28, 29])


def test_query_heads_of_a_group_may_be_swapped():
    q, k = random_heads(5)
    for one, other in zip(dapq.kept(q, k, 9), dapq.kept(q[:, ::-1], k, 9), strict=True):
        assert_array_equal(one, other)


def test_later_prompt_tokens_cannot_be_hidden_by_the_pseudo_mask():
    """Every pseudo query sees the whole prompt: a key that all of them want is kept wherever it is."""
    q, k = random_heads(6)
    for j in (0, 15, 29):
        wanted = k.copy()
        wanted[:, j] = 4 * q.mean(axis=(1, 2))
        strong = np.broadcast_to(q.mean(axis=(1, 2))[:, None, None], q.shape)
        assert all(j in head for head in dapq.kept(strong, wanted, 1))
