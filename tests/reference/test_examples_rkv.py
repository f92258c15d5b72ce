"""R-KV: the worked example A8, the authors' numbers, decoding, edges."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from .golden_methods import grouped, load
from .rkv import (
    Layer,
    attention_part,
    column_similarity,
    kept,
    last_duplicate,
    redundancy,
    release_first,
    release_last,
    scores,
)
from .softmax import softmax

ANGLES = np.deg2rad([0, 90, 0, 90, 180, 270])
KEYS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=-1)
SEEN = np.array([0.5, 0.25, 0.125, 0.0625, 0.0625])


def mixed(forgive, weight):
    return weight * SEEN - (1 - weight) * redundancy(KEYS[None], forgive=forgive)[0, :5]


def test_a8_last_duplicates():
    cos = KEYS @ KEYS.T
    np.fill_diagonal(cos, 0)
    assert [last_duplicate(row > 0.5) for row in cos] == [2, 3, 0, 1, None, None]
    assert [release_last(row > 0.5) for row in cos] == [2, 3, 0, 1, 0, 0]


def test_a8_release():
    assert_allclose(column_similarity(KEYS, forgive=release_last), [0, *[-1 / 6] * 3, *[-1 / 3] * 2], atol=1e-12)
    u_r = redundancy(KEYS[None], forgive=release_last)[0]
    assert_allclose(u_r, [0.201106, 0.170232, 0.170232, 0.170232, 0.144099, 0.144099], atol=5e-7)
    assert_array_equal(kept(mixed(release_last, 0.1)[None], budget=3, window=1), [[1, 4, 5]])


def test_a8_without_the_write_into_column_0():
    assert_allclose(column_similarity(KEYS)[:4], [-1 / 6] * 4, atol=1e-12)
    assert_array_equal(kept(mixed(last_duplicate, 0.1)[None], budget=3, window=1), [[0, 4, 5]])


def test_a8_attention_alone():
    assert_array_equal(kept(mixed(last_duplicate, 1.0)[None], budget=3, window=1), [[0, 1, 5]])


@pytest.mark.parametrize("case, forgive", [(0, release_last), (1, release_last), (2, release_first), (3, release_last)])
def test_the_authors_numbers(case, forgive):
    data = load("rkv")
    k, q, window = data["key"][0], grouped(data["query_window"][0], 2), int(data["window"])
    weight = float(data[f"c{case}_mix_lambda"])
    assert_allclose(redundancy(k, forgive=forgive), data[f"c{case}_similarity"], atol=1e-7)
    u = scores(q, k, window=window, size=int(data["kernel"]), weight=weight, forgive=forgive)
    assert_allclose(u, data[f"c{case}_final_score"][0], atol=1e-7)
    ours = kept(u, budget=int(data["budget"]), window=window)
    assert_array_equal(ours, np.sort(data[f"c{case}_kept_all"], axis=1))


def test_the_window_is_cut_before_the_softmax():
    q, k = np.random.default_rng(0).normal(size=(1, 2, 3, 4)), np.random.default_rng(1).normal(size=(1, 9, 4))
    u = attention_part(q, k, window=3, size=1)
    assert_allclose(u.sum(), 1.0)


def test_decoding_holds_the_budget_and_true_keys():
    rng, window, budget, interval = np.random.default_rng(2), 4, 16, 8
    keys, values = rng.normal(size=(2, 2, 60, 4))
    layer = Layer(np.zeros((2, 0, 4)), np.zeros((2, 0, 4)), np.zeros((2, 0), int), budget, window)
    for t in range(60):
        before = layer.pos
        q = rng.normal(size=(2, 3, 4))
        out = layer.step(q, keys[:, t], values[:, t], t, cut=(t + 1) % interval == 0)
        seen = np.concatenate([before, np.full((2, 1), t)], axis=1)
        for h in range(2):
            rows = softmax(q[h] @ keys[h, seen[h]].T / 2)
            assert_allclose(out[h], rows @ values[h, seen[h]])
            assert_array_equal(layer.k[h], keys[h, layer.pos[h]])
            assert set(range(max(0, t - window + 1), t + 1)) <= set(layer.pos[h])
        assert layer.pos.shape[1] <= budget + interval - 1
        if (t + 1) % interval == 0:
            assert layer.pos.shape[1] == min(t + 1, budget)


def test_one_token():
    layer = Layer(np.zeros((1, 0, 2)), np.zeros((1, 0, 2)), np.zeros((1, 0), int), 4, window=2)
    out = layer.step(np.ones((1, 1, 2)), np.ones((1, 2)), np.array([[3.0, 4.0]]), 0, cut=True)
    assert_allclose(out, [[[3, 4]]])
    assert layer.pos.tolist() == [[0]]
