"""CAKE's worked example (E16), the numbers of its authors' code, and what must hold of every allocation and cut."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import cake
from .attention import attention_rows
from .decode_head import decode_head
from .softmax import softmax

GOLDEN = Path(__file__).parents[1] / "data" / "golden_methods"


def same(kept, expected):
    for head, wanted in zip(kept, expected, strict=True):
        assert_array_equal(head, np.sort(wanted))


# ---- Worked example


@pytest.mark.parametrize("seen, budgets", [([1], [7]), ([1, 1], [6, 6]), ([1, 1, 6], [3, 2, 7])])
def test_e16_budgets(seen, budgets):
    assert list(cake.release_budgets(np.array(seen, float), 12, 7)) == budgets
    assert list(cake.exact_budgets(np.array(seen, float), 12, 7)) == budgets


def test_e16_steps_of_the_last_allocation():
    assert_allclose(np.array([1, 1, 6]) / 8 * 12, [1.5, 1.5, 9])
    assert list(cake.spread(np.array([1, 1, 7]), 2, 7)) == [2, 2, 7]
    assert list(cake.spread(np.array([2, 2, 7]), 1, 7)) == [3, 2, 7]


def test_e16_indicator():
    a = np.array([[0.2, 0.05], [0.2, 0.15]])[None, None]
    assert_allclose(a.var(axis=2, ddof=1)[0, 0], [0, 0.005])
    assert_allclose(cake.indicator(a, 200.0, size=1)[0], [0.2, 1.1])
    assert list(cake.highest(cake.indicator(a, 200.0, size=1)[0], 1)) == [1]


def test_e16_preference():
    a = np.array([[0.5, 0.3], [0.1, 0.3]])[None, None]
    assert_allclose(cake.entropy(a), 1.2992, atol=5e-5)
    assert_allclose(cake.variance(a), 0.08, atol=5e-8)
    assert_allclose(cake.preference(a), 0.10394, atol=5e-6)
    assert_allclose(cake.preference(a, 1.6, 0.4), 0.0021319, atol=5e-8)
    assert_allclose(np.exp(cake.log_preference(a, 1.6, 0.4)), cake.preference(a, 1.6, 0.4))


# ---- The authors' numbers


@pytest.fixture(scope="module")
def golden():
    return np.load(GOLDEN / "cake.npz")


@pytest.fixture(scope="module")
def rows(golden):
    per_layer = []
    for layer in range(4):
        q = golden[f"L{layer}_query_window"][0].reshape(2, 2, 8, 16)
        per_layer.append(attention_rows(q, golden[f"L{layer}_key"][0]))
    return per_layer


def test_golden_preferences(golden, rows):
    found = [cake.preference(cake.older(r), float(golden["tau1"]), float(golden["tau2"])) for r in rows]
    assert_allclose(found, golden["pref_scores"], rtol=1e-5)
    shares = np.array(found) / sum(found)
    assert_allclose(shares * (40 - 8) * 4, golden["raw_budgets"], rtol=1e-5)


def test_golden_scores(golden, rows):
    for layer, r in enumerate(rows):
        assert_allclose(cake.indicator(cake.older(r)), golden[f"L{layer}_evict_score"][0], rtol=1e-5)


def test_golden_prefill_is_the_cascade(golden, rows):
    kept = cake.prefill(rows, 40, tau1=float(golden["tau1"]), tau2=float(golden["tau2"]))
    for layer in range(4):
        same(kept[layer], golden[f"L{layer}_kept"])
        same(kept[layer], golden[f"L{layer}_kept_cascade"])


def test_golden_budgets_along_the_cascade(golden, rows):
    cascade = cake.Cascade(128, 112)
    for layer, r in enumerate(rows):
        a = cake.older(r)
        cascade.see(cake.indicator(a), cake.preference(a, float(golden["tau1"]), float(golden["tau2"])))
        assert_array_equal(cascade.history[layer], golden["cascade_budgets"][layer, : layer + 1])
    assert_array_equal(cascade.history[-1], golden["layer_budgets"])


def test_golden_two_phase(golden, rows):
    scores = [cake.indicator(cake.older(r)) for r in rows]
    kept = cake.two_phase(scores, golden["pref_scores"].astype(float), 128)
    for layer in range(4):
        same([np.append(head, np.arange(112, 120)) for head in kept[layer]], golden[f"L{layer}_kept"])


@pytest.mark.parametrize("row", range(24))
def test_golden_adjusted_budgets(row):
    z = np.load(GOLDEN / "cake_budgets.npz")
    layers = int(z["layers"][row])
    found = cake.adjust(z["raw"][row, :layers], int(z["total"][row]), int(z["seq_len"][row]))
    assert_array_equal(found, z["out"][row, :layers])


def test_golden_decode():
    z = np.load(GOLDEN / "cake_decode.npz")
    computed = np.einsum("hgd,hnd->hgn", z["query"][0, :, 0].reshape(2, 2, 16), z["key"][0].astype(float)) / 4
    assert_allclose(softmax(computed), z["attn"][0, :, 0].reshape(2, 2, 60), atol=1e-6)
    kept = []
    for head in z["attn"][0, :, 0].reshape(2, 2, 60):
        rule = cake.Decoding(int(z["hh_size"]), int(z["window"]), np.arange(59))
        rule.step(head, 59)
        kept.append(rule.held)
    same(kept, z["kept_sorted"])


# ---- What must hold


def random_rows(seed, layers=4, n=60, w=6):
    rng = np.random.default_rng(seed)
    q, k = 2 * rng.normal(size=(layers, 2, 2, w, 8)), rng.normal(size=(layers, 2, n, 8))
    return [attention_rows(*pair) for pair in zip(q, k, strict=True)]


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("allocate", [cake.release_budgets, cake.exact_budgets])
def test_the_window_survives_and_the_total_is_exact(seed, allocate):
    kept = cake.prefill(random_rows(seed), 16, allocate=allocate)
    assert sum(len(layer[0]) for layer in kept) == 16 * 4
    for layer in kept:
        assert {len(head) for head in layer} == {len(layer[0])}
        for head in layer:
            assert_array_equal(head[-6:], np.arange(54, 60))
            assert len(set(head.tolist())) == len(head)


@pytest.mark.parametrize("n, held", [(22, 22), (23, 16)])
def test_nothing_happens_up_to_budget_and_window(n, held):
    kept = cake.prefill(random_rows(0, layers=1, n=n), 16)
    assert len(kept[0][0]) == held


def test_query_heads_of_a_group_may_be_swapped():
    rows = random_rows(3)
    for one, other in zip(cake.prefill(rows, 16), cake.prefill([r[:, ::-1] for r in rows], 16), strict=True):
        same(one, other)


def test_a_layer_never_grows_again():
    """A last layer that is clipped spreads its excess over layers that were cut before: they keep what they still store."""
    preferences, u = np.array([1.0, 9, 9, 1000]), np.arange(7.0)[None]
    assert list(cake.release_budgets(preferences[:3], 12, 7)) == [1, 6, 5]
    assert list(cake.release_budgets(preferences, 12, 7)) == [3, 1, 1, 7]
    cascade = cake.Cascade(12, 7)
    for p in preferences:
        cascade.see(u, p)
    assert [list(h) for h in cascade.history] == [[7], [5, 7], [1, 6, 5], [1, 1, 1, 7]]
    assert [len(layer[0]) for layer in cake.two_phase([u] * 4, preferences, 12)] == [3, 1, 1, 7]


def test_equal_layers_share_evenly():
    rows = random_rows(1, layers=1) * 3
    assert [len(layer[0]) for layer in cake.prefill(rows, 16)] == [16, 16, 16]


def test_decoding_holds_the_size_and_the_window():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 40, 8)), rng.normal(size=(40, 8)), rng.normal(size=(40, 8))
    rule = cake.Decoding(9, 4, np.arange(20))
    for step in decode_head(rule, q, k, v, 20)[1:]:
        assert len(step.held) == 13
        newest = step.held[-1]
        assert_array_equal(step.held[-4:], np.arange(newest - 3, newest + 1))


def test_decoding_within_the_budget_is_full_attention():
    rng = np.random.default_rng(0)
    q, k, v = rng.normal(size=(2, 30, 8)), rng.normal(size=(30, 8)), rng.normal(size=(30, 8))
    last = decode_head(cake.Decoding(26, 4, np.arange(20)), q, k, v, 20)[-1]
    assert_array_equal(last.held, np.arange(30))
    assert_allclose(last.out, softmax(q[:, -1] @ k.T / np.sqrt(8)) @ v)


def test_one_token_held_before_the_window():
    kept = cake.Decoding(0, 2, np.arange(3))
    kept.step(np.full((1, 4), 0.25), 3)
    assert_array_equal(kept.held, [2, 3])
