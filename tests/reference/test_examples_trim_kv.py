"""TRIM-KV's worked examples (T1), and what must hold of its gate, its scores and its heads."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import trim_kv
from .held import causal
from .softmax import softmax

LOG_BETA = np.log([1, 0.5, 0.25, 0.9])


def tokens(n, g=2, d=4, seed=0):
    rng = np.random.default_rng(seed)
    return rng.normal(size=(g, n, d)), rng.normal(size=(n, d)), rng.normal(size=(n, d)), -rng.exponential(size=n) / 5


def fed(head, q, k, v, log_beta, pieces):
    """Outputs and the positions held after each piece."""
    outs, held, at = [], [], 0
    for c in pieces:
        part = slice(at, at + c)
        out, pos = head.extend(q[:, part], k[part], v[part], log_beta[part])
        outs.append(out)
        held.append(list(pos))
        at += c
    return np.concatenate(outs, axis=1), held


def test_t1_attention_decays():
    assert_allclose(np.exp(trim_kv.decay(LOG_BETA)[3]), [1, 0.25, 0.25, 1])
    rows = trim_kv.decayed_rows(np.zeros((1, 4, 2)), np.ones((4, 2)), LOG_BETA)
    assert_allclose(rows[0, 3], [0.4, 0.1, 0.1, 0.4])


def test_t1_scores_and_who_stays():
    scores = trim_kv.retention(LOG_BETA, np.arange(4), 3)
    assert_allclose(scores, [0, -2.772589, -4.158883, -0.210721], atol=5e-7)
    q, k, v, _ = tokens(4)
    head = trim_kv.Head(4, budget=2, buffer=2)
    assert fed(head, q, k, v, LOG_BETA, [1] * 4)[1] == [[0], [0, 1], [0, 1, 2], [0, 3]]
    assert_allclose(head.log_beta, LOG_BETA[[0, 3]])


def test_t1_capacity_in_two_forms():
    s = trim_kv.retained(LOG_BETA)
    assert_allclose(s, [1, 2, 2.5, 2.5])
    assert_allclose(trim_kv.capacity_code(s, 2), 0.5)
    assert_allclose(trim_kv.capacity_paper(s, 2), 0.072917, atol=5e-7)


@pytest.mark.parametrize("now, want", [(10, [-1.7877, -1.3863]), (11, [-1.9502, -2.0794])])
def test_t1_the_order_turns_with_age(now, want):
    """Token A, beta 0.85, born at 0; token B, beta 0.5, born at 9. The newest token is the one at now - 1."""
    log_beta, pos = np.log([0.85, 0.5]), np.array([0, 9])
    assert_allclose(trim_kv.retention(log_beta, pos, now - 1), want, atol=5e-5)


@pytest.mark.parametrize("buffer, stays", [(9, [9]), (10, [0])])
def test_t1_who_stays_turns_with_age(buffer, stays):
    """The same two tokens, all others worthless; the head is full, and cut to one, one step earlier or later."""
    q, k, v, _ = tokens(1 + buffer)
    log_beta = np.full(1 + buffer, -9.0)
    log_beta[[0, 9]] = np.log([0.85, 0.5])
    _, held = fed(trim_kv.Head(4, budget=1, buffer=buffer), q, k, v, log_beta, [1] * (1 + buffer))
    assert held == [*(list(range(n)) for n in range(1, 1 + buffer)), stays]


def test_t1_memory():
    n, d, budget, buffer = 32768, 128, 512, 128
    bits = 8 * trim_kv.trim_nbytes(budget + buffer, d) / (2 * d * n)
    assert bits == pytest.approx(16 * 640 / n + 64 / (2 * d) * 640 / n)


def test_the_gate_by_hand():
    x, w1, b1 = np.array([[1.0, -2.0]]), np.array([[0.5], [0.25]]), np.array([2.0])
    hidden = 1.0 * 0.5 - 2.0 * 0.25 + 2.0
    silu = hidden / (1 + math.exp(-hidden))
    got = trim_kv.gate(x, w1, b1, np.array([[-1.0, 3.0]]), np.array([0.5, 1.0]))
    want = [-math.log(1 + math.exp(-(-silu + 0.5))), -math.log(1 + math.exp(-(3 * silu + 1)))]
    assert_allclose(got, [want])


@pytest.mark.parametrize("b2", [10.0, 18.0])
def test_an_untrained_gate_keeps_almost_everything(b2):
    rng = np.random.default_rng(0)
    w1, w2 = rng.normal(size=(64, 512)) * 0.02, rng.normal(size=(512, 3)) * 0.02
    got = trim_kv.gate(rng.normal(size=(5, 64)), w1, np.zeros(512), w2, np.full(3, b2))
    assert got.shape == (5, 3) and (got < 0).all()
    assert_allclose(got, -math.exp(-b2), rtol=0.3)


def test_the_gate_does_not_overflow():
    x = np.array([[-800.0], [800.0]])
    got = trim_kv.gate(x, np.ones((1, 1)), np.zeros(1), np.ones((1, 1)), np.zeros(1))
    assert_allclose(got[:, 0], [-math.log(2), 0])
    assert trim_kv.log_sigmoid(np.array([-1e4]))[0] == -1e4


def test_nothing_decays_where_beta_is_one():
    q, k, v, _ = tokens(9)
    assert_allclose(trim_kv.decayed_rows(q, k, np.zeros(9)) @ v, causal(q, k, v), atol=1e-12)
    assert_allclose(trim_kv.retained(np.zeros(9)), np.arange(1, 10))


def test_decay_is_added_entry_by_entry():
    q, k, _, log_beta = tokens(6)
    rows = trim_kv.decayed_rows(q, k, log_beta)
    for g, t in np.ndindex(2, 6):
        z = np.array([q[g, t] @ k[i] / 2 + (t - i) * log_beta[i] for i in range(t + 1)])
        assert_allclose(rows[g, t], np.append(softmax(z), np.zeros(5 - t)), atol=1e-12)


def test_look_ahead_is_its_closed_form():
    log_beta, pos = np.log([0.9, 0.5, 0.99]), np.array([0, 4, 6])
    beta, a = np.exp(log_beta), 7 + 3 - pos
    assert_allclose(trim_kv.look_ahead(log_beta, pos, 7, 5), beta**a * (1 - beta**5) / (1 - beta))
    assert_allclose(trim_kv.look_ahead(np.zeros(2), np.array([0, 1]), 7, 5), 5)
    assert_array_equal(np.argsort(trim_kv.look_ahead(log_beta, pos, 7, 1)), np.argsort(trim_kv.retention(log_beta, pos, 8)))


def test_the_norm_of_the_key_counts_as_a_logarithm():
    k = np.array([[3.0, 4.0], [0.0, 1.0]])
    got = trim_kv.retention_and_norm(np.log([0.5, 0.5]), np.array([1, 1]), 1, k)
    assert_allclose(got, [math.log(1.25), math.log(0.25)])


@pytest.mark.parametrize("budget, buffer", [(4, 1), (4, 3), (8, 8)])
def test_a_head_grows_to_budget_and_buffer_and_falls_to_the_budget(budget, buffer):
    q, k, v, log_beta = tokens(40)
    _, held = fed(trim_kv.Head(4, budget=budget, buffer=buffer), q, k, v, log_beta, [1] * 40)
    full = budget + buffer
    want = [n if n < full else budget + (n - full) % buffer for n in range(1, 41)]
    assert [len(h) for h in held] == want
    assert all(h == sorted(set(h)) for h in held)


def test_a_step_attends_to_everything_before_the_cut():
    q, k, v, log_beta = tokens(6)
    head = trim_kv.Head(4, budget=2, buffer=4)
    out, held = fed(head, q, k, v, log_beta, [1] * 6)
    assert len(held[-1]) == 2
    assert_allclose(out, causal(q, k, v), atol=1e-12)


@pytest.mark.parametrize("n", [1, 3, 7])
def test_nothing_goes_below_budget_and_buffer(n):
    q, k, v, log_beta = tokens(n)
    out, held = fed(trim_kv.Head(4, budget=5, buffer=3), q, k, v, log_beta, [n])
    assert held == [list(range(n))]
    assert_allclose(out, causal(q, k, v), atol=1e-12)


def test_pieces_of_a_prompt_are_cut_one_after_another():
    q, k, v, _ = tokens(10)
    log_beta = np.log([0.9, 0.2, 0.8, 0.3, 0.99, 0.1, 0.2, 0.3, 0.4, 0.5])
    out, held = fed(trim_kv.Head(4, budget=3, buffer=2), q, k, v, log_beta, [5, 5])
    first = trim_kv.retention(log_beta[:5], np.arange(5), 4)
    assert held[0] == sorted(np.argsort(-first)[:3]) == [0, 2, 4]
    seen = [0, 2, 4, *range(5, 10)]
    assert_allclose(out[:, 5:], causal(q[:, 5:], k[seen], v[seen]), atol=1e-12)
    second = trim_kv.retention(log_beta[seen], np.array(seen), 9)
    assert held[1] == sorted(np.array(seen)[np.argsort(-second)[:3]]) == [0, 4, 9]


def test_forced_tokens_stay_whatever_their_score():
    q, k, v, _ = tokens(8)
    log_beta = np.append(np.full(6, -1e-6), [-50.0, -50.0])
    assert fed(trim_kv.Head(4, budget=4, buffer=4), q, k, v, log_beta, [8])[1] == [[2, 3, 4, 5]]
    assert fed(trim_kv.Head(4, budget=4, buffer=4, recent=2), q, k, v, log_beta, [8])[1] == [[4, 5, 6, 7]]
    assert fed(trim_kv.Head(4, budget=2, buffer=6, recent=5), q, k, v, log_beta, [8])[1] == [[6, 7]]


def test_equal_scores_keep_the_lower_position():
    q, k, v, _ = tokens(6)
    assert fed(trim_kv.Head(4, budget=3, buffer=3), q, k, v, np.zeros(6), [6])[1] == [[0, 1, 2]]
