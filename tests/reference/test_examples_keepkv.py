"""KeepKV: the worked example A19b, what it reduces to, edges."""

import numpy as np
from numpy.testing import assert_allclose

from .keepkv import Head, combined, exact_logit, nearest, scores, weight
from .softmax import softmax


def test_a19b_merge():
    k_r, k_e = np.array([1.0, 0]), np.array([0.8, 0.6])
    assert_allclose(nearest(k_e, k_r[None]), (0, 0.8))
    w_r, w_e = weight(1, 2.0, eps=0.0), weight(1, 0.5, eps=0.0)
    assert_allclose(combined(k_r, k_e, w_r, w_e), [0.96, 0.12])
    assert_allclose(combined(np.array([0.0, 4]), np.array([8.0, 0]), w_r, w_e), [1.6, 3.2])
    assert_allclose(combined(np.array(2.0), np.array(0.5), 1, 1), 1.25)


def test_a19b_mass():
    q = np.linalg.solve(np.array([[1.0, 0], [0.8, 0.6]]), np.log([2.0, 0.5]))
    merged = 2 * np.exp(np.array([0.96, 0.12]) @ q)
    assert_allclose(merged, 3.031433, atol=5e-7)
    exact = exact_logit([2.0, 0.5], [1, 1])
    assert_allclose(exact, 0.223144, atol=5e-7)
    assert_allclose(2 * np.exp(exact), 2.5)


def test_a19b_in_a_head():
    """The same merge by an event: one query with those exponentials, one sink, one recent token."""
    q = np.sqrt(2) * np.linalg.solve(np.array([[1.0, 0], [0.8, 0.6]]), np.log([2.0, 0.5]))
    k, v = np.array([[1.0, 0], [0.8, 0.6]]), np.array([[0.0, 4], [8, 0]])
    head = Head(k, v, budget=2, threshold=0.7, window=1, sinks=1, recent=1, eps=0.0)
    head.step(q, np.array([-1.0, 0]), np.zeros(2))
    assert_allclose(head.k, [[0.96, 0.12], [-1, 0]])
    assert_allclose(head.v, [[1.6, 3.2], [0, 0]])
    assert head.c.tolist() == [2, 1] and head.pos.tolist() == [0, 2]
    assert_allclose(head.seen[0, 0], 1.25)


def test_votes_bias_the_next_row():
    head = Head(np.zeros((2, 2)), np.eye(2), budget=9, threshold=0.5)
    head.c = np.array([3.0, 1.0])
    out = head.step(np.ones(2), np.zeros(2), np.zeros(2))
    assert_allclose(out, [3 / 5, 1 / 5])


def test_a_threshold_above_one_only_drops():
    rng = np.random.default_rng(0)
    keys, values, queries = rng.normal(size=(3, 40, 4))
    head = Head(keys[:12].copy(), values[:12].copy(), budget=9, threshold=1.1, sinks=2, recent=3)
    head.start(queries[:12])
    for t in range(12, 40):
        held = [*head.pos, t]
        out = head.step(queries[t], keys[t], values[t])
        assert_allclose(out, softmax(queries[t] @ keys[held].T / 2) @ values[held])
        assert_allclose(head.k, keys[head.pos])
        assert head.pos[:2].tolist() == [0, 1] and head.pos[-3:].tolist() == [t - 2, t - 1, t]
        assert len(head.pos) == 9 and (head.c == 1).all()


def test_votes_add_up_and_equal_tokens_merge_without_loss():
    k, v = np.ones((6, 2)), np.tile([1.0, -1.0], (6, 1))
    head = Head(k.copy(), v.copy(), budget=3, threshold=0.5, sinks=1, recent=1)
    head.start(np.zeros((6, 2)))
    assert head.c.sum() == 6
    q = np.array([0.3, 0.4])
    out = head.step(q, np.array([2.0, 0]), np.array([5.0, 5.0]))
    rows = softmax(np.append(np.full(6, q.sum()), 0.6) / np.sqrt(2))
    assert_allclose(out, rows[:6].sum() * v[0] + rows[6] * 5)


def test_a_ranking_by_the_last_queries():
    """Keys 0, ln 2, 0, 0 and queries 9, 9, 1, 2: the first two queries are not looked at, whatever they attend to."""
    head = Head(np.log([[1.0], [2], [1], [1]]), np.zeros((4, 1)), budget=4, threshold=0.5, window=2, newest=1.2)
    head.start(np.array([[9.0], [9], [1], [2]]))
    assert_allclose(head.scores(), [1 + 1.2, 2 + 1.2 * 4, 1 + 1.2, 1.2])
    head.c[2] = 3.0  # votes attract attention, and do not rank
    assert_allclose(head.scores()[2], 2.2)


def test_weights_rise_linearly():
    assert_allclose(scores(np.ones((3, 1)), 3, 5.0), [1 + 3 + 5])
    assert_allclose(scores(np.ones((1, 1)), 3, 5.0), [5])
    assert_allclose(scores(np.ones((1, 1)), 1, 5.0), [1])
