"""The worked examples for eviction while decoding: E1 and the decode step of E2; and the rules of the loop."""

import numpy as np
from numpy.testing import assert_allclose

from .in_cache import held_before_append, rotated_logits
from .streaming import by_accumulated, by_last_row, by_recency, evict_loop, rows_of

H2O_ROWS = [[1], [0.6, 0.4], [0.2, 0.7, 0.1], [0.1, 0.5, 0.1, 0.3], [0.15, 0.35, 0.2, 0.1, 0.2], [0.1, 0.5, 0.1, 0.3]]


def test_e1_streaming_llm():
    kept = held_before_append(np.arange(7), 1, sinks=2, recent=3)
    assert list(kept) == [0, 1, 5, 6]
    held, q = np.append(kept, 7), np.array([1.0, 0])
    keys = np.tile(q, (5, 1))
    in_cache = rotated_logits(q, keys, 0.5, 4, np.arange(5))
    assert_allclose(in_cache, [-0.4161, 0.0707, 0.5403, 0.8776, 1.0], atol=5e-5)
    true = rotated_logits(q, keys, 0.5, 7, held)
    assert_allclose(true, [-0.9365, -0.9900, 0.5403, 0.8776, 1.0], atol=5e-5)


def test_e1_edges():
    assert list(held_before_append(np.arange(4), 1, sinks=2, recent=3)) == [0, 1, 2, 3]
    assert list(held_before_append(np.arange(7), 5, sinks=2, recent=3)) == [0, 1]


def test_e2_h2o_next_step():
    def row(t, held):
        return np.array(H2O_ROWS[t])

    history = evict_loop(row, 5, 1, score=by_accumulated, budget=3, recent=2)
    assert [list(held) for held in history] == [[0, 3, 4], [0, 4, 5]]


def test_streaming_llm_holds_sinks_and_recent():
    row = rows_of(np.zeros((1, 20, 2)), np.zeros((20, 2)))
    history = evict_loop(row, 10, 10, score=by_recency, budget=5, sinks=2)
    assert list(history[0]) == [0, 1, 7, 8, 9] and list(history[-1]) == [0, 1, 17, 18, 19]


def test_every_k_lets_the_cache_grow_between_cuts():
    rng = np.random.default_rng(1)
    row = rows_of(rng.normal(size=(2, 40, 4)), rng.normal(size=(40, 4)))
    history = evict_loop(row, 16, 24, score=by_last_row, budget=12, every=8, after_prefill=False)
    assert [len(held) for held in history] == [*range(16, 24), *(3 * (12, *range(13, 20)))][:24] + [12]


def test_tova_may_drop_the_newest_and_protection_stops_it():
    def row(t, held):
        return np.linspace(2, 1, len(held)) / np.linspace(2, 1, len(held)).sum()

    assert list(evict_loop(row, 4, 1, score=by_last_row, budget=4)[-1]) == [0, 1, 2, 3]
    assert list(evict_loop(row, 4, 1, score=by_last_row, budget=4, recent=1)[-1]) == [0, 1, 2, 4]
