"""CaM: the worked example E20, the authors' run of 26 steps, reductions, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .cam import Head, least_attended, merged_values, oldest_after, probability, ratio
from .golden_methods import load

ROW = np.array([0.2, 0.1, 0.3, 0.1, 0.3])


def test_e20():
    v = np.array([[9.0, 9.0], [2, 4], [1, 0], [0, 1], [7, 7]])
    assert_allclose(probability(ROW, 1), 0.4286, atol=5e-5)
    head = Head(np.zeros((5, 2)), v, np.arange(5), 4, oldest_after(1), m=2)
    head.observe(ROW)
    assert_allclose(head.evict(draw=0.3), 0.1 / (0.7 / 3))
    assert head.pos.tolist() == [0, 2, 3, 4]
    assert_allclose(head.v, [[9, 9], [2, 2], [1, 3], [7, 7]])


def test_no_merge_above_the_probability():
    v = np.arange(10.0).reshape(5, 2)
    head = Head(np.zeros((5, 2)), v, np.arange(5), 4, oldest_after(1), m=2)
    head.observe(ROW)
    head.evict(draw=0.43)
    assert_array_equal(head.v, v[[0, 2, 3, 4]])


def test_the_authors_run():
    data = load("cam")
    start, cache, n = int(data["start_size"]), int(data["start_size"] + data["recent_size"]), int(data["n_start"])
    for h, (k, v) in enumerate(zip(data["key"][0], data["value"][0], strict=True)):
        head, merges = Head(k[:n], v[:n], np.arange(n), cache, oldest_after(start), m=16, over=16, accumulate=True), 0
        for t, row in enumerate(data["attn_padded"][:, h]):
            head.append(k[n + t], v[n + t], n + t)
            head.observe(row[: len(head.k)])
            drawn = data["merge_mask_drawn"][min(merges, 21), 0, h, 0]
            p = head.evict(draw=-1.0 if drawn else 2.0)
            assert len(head.k) == data["cache_len_after"][t]
            if p is not None:
                assert_allclose(p, data["merge_prob_clamped"][merges, 0, h, 0], atol=1e-6)
                merges += 1
        assert merges == 22
        assert_array_equal(head.k, data["final_key"][0, h])
        assert_allclose(head.v, data["final_value"][0, h], atol=2e-6)
        assert_allclose(head.acc, data["final_accum_attn"][0, h, 0], atol=2e-6)


@pytest.mark.parametrize("victim", [oldest_after(2), least_attended(2, 4)])
def test_without_merging_it_is_its_host(victim):
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(2, 40, 4))
    head, held, acc = Head(np.zeros((0, 4)), np.zeros((0, 4)), np.zeros(0, int), 12, victim), [], np.zeros(40)
    for t in range(40):
        held.append(t)
        head.append(keys[t], values[t], t)
        row = rng.random(len(held))
        acc[held] += row
        head.observe(row)
        head.evict(draw=2.0)
        if len(held) > 12:
            held.pop(victim(acc[held]))
        assert head.pos.tolist() == held
        assert_array_equal(head.v, values[held])


def test_values_grow_by_the_whole_of_the_dropped_one():
    v = np.random.default_rng(1).normal(size=(9, 3))
    assert_allclose(np.delete(merged_values(v, 2, 4), 2, axis=0).sum(axis=0), v.sum(axis=0))


def test_fewer_later_tokens_than_m_lose_the_rest():
    v = np.array([[4.0], [0.0], [0.0]])
    assert_allclose(merged_values(v, 0, 4), [[4], [1], [1]])


def test_edges_of_the_ratio():
    assert probability(np.array([0.0, 0.0]), 0) == 0
    assert probability(np.array([0.1, 0.0]), 0) == 1
    assert probability(np.array([1.0]), 0) == 0
    assert ratio(np.array([0.4, 0.1, 0.3]), 0) == 2
    assert ratio(np.array([0.4, 0.1, 0.3]), 0, over=1) == 4
