"""CriticalKV: the worked example A5, what it reduces to, edges, recorded presses."""

import numpy as np
from numpy.testing import assert_allclose, assert_array_equal

from . import golden_presses as golden
from .criticalkv import counts, critical, critical_adaptive, critical_ranking, projected_value_norm, without_first_stage
from .top_k import sinks_and_recent, top_k

U = np.array([0.4, 0.25, 0.15, 0.1, 0.06, 0.04])
W = np.array([0.5, 1, 3, 1, 8, 2])


def test_a5_two_stages():
    assert_allclose((U + 1e-4) * W, [0.20005, 0.2501, 0.4503, 0.1001, 0.4808, 0.0802])
    budget, first = counts(6, 0.5)
    assert (budget, first) == (3, 1)
    assert list(critical(U[None], W[None], budget, first)[0]) == [0, 2, 4]
    assert list(top_k(U, 3)) == [0, 1, 2]
    assert list(without_first_stage(U, W, 3)) == [1, 2, 4]


def test_a5_the_first_stage_truncates_the_whole_product():
    assert counts(7, 0.5) == (3, 1)


def test_a5_projected_norm():
    w_o = np.array([[[[1, 0], [0, -1]], [[2, 1], [-1, 0]]]], float)
    v = np.array([[[1.0, 2.0]]])
    norms = [projected_value_norm(v, w_o[:, i : i + 1])[0, 0] for i in (0, 1)]
    assert norms == [3, 1]
    assert projected_value_norm(v, w_o)[0, 0] == 2


def test_a5_adaptive():
    u = np.array([[0.5, 0.3, 0.1, 0.05, 0.03, 0.02], [0.2, 0.18, 0.17, 0.16, 0.15, 0.14]])
    w = np.ones((2, 6))
    w[0, 5], w[1, 4] = 9, 4
    kept = critical_adaptive(u, w, 3, alpha=0.4)
    assert [list(j) for j in kept] == [[0, 1], [0, 1, 2, 4]]


def test_what_a_head_is_sure_of_goes_by_score():
    """kvpress: the safeguard leads both stages, so a head of two slots does not give its second to a large value."""
    u = np.array([[0.05, 0.04, 0.01, 0.01, 0.01, 0.01], [0.3, 0.25, 0.2, 0.15, 0.1, 0.08]])
    w = np.ones((2, 6))
    w[0, 2] = 9
    kept = critical_adaptive(u, w, 4, alpha=0.5)
    assert [list(j) for j in kept] == [[0, 1], [0, 1, 2, 3, 4, 5]]


def test_equal_weights_and_no_epsilon_leave_the_base():
    u = np.random.default_rng(0).random((3, 40))
    kept = critical(u, np.ones_like(u), 17, 8, eps=0.0)
    assert [list(j) for j in kept] == [list(top_k(x, 17)) for x in u]


def test_the_whole_budget_in_the_first_stage_leaves_the_base():
    u, w = np.random.default_rng(1).random((2, 40))
    assert list(critical_ranking(u, w, 17)[:17]) == list(critical_ranking(u, np.ones(40), 17, eps=0.0)[:17])


def test_epsilon_lets_a_large_value_win_without_score():
    u, w = np.array([0.5, 0.1, 0.0]), np.array([1.0, 1.0, 1e4])
    assert list(critical(u[None], w[None], 2, 1)[0]) == [0, 2]
    assert list(critical(u[None], w[None], 2, 1, eps=0.0)[0]) == [0, 1]


def test_one_token_and_protected_tokens():
    assert list(critical(U[None, :1], W[None, :1], 0, 0)[0]) == [0]
    protected = sinks_and_recent(6, recent=2)
    assert list(critical(U[None], W[None], 3, 1, protected=protected)[0]) == [2, 4, 5]


@golden.every_model
def test_recorded_window_form(name):
    base = golden.cells(name, "snapkv")[0].arrays["scores"]
    check(name, golden.cells(name, "criticalkv_snapkv"), base, {"recent": 16})


@golden.every_model
def test_recorded_expected_attention_form(name):
    """The base is the expected attention without its value norm, divided out of the recorded scores."""
    values = golden.model(name).reference()["values"].astype(np.float64)
    scored = golden.cells(name, "expected_attention")[0].arrays["scores"] / np.linalg.norm(values, axis=-1)
    check(name, golden.cells(name, "criticalkv_expected"), scored, {"sinks": 4})


def check(name, cells, base, protection):
    """Kept sets of every layer and prompt; values where neither stage one nor protection forced the entry."""
    values = golden.model(name).reference()["values"]
    for layer in range(len(values)):
        w_o = golden.output_projection(name, layer)
        for row in range(values.shape[1]):
            w, n = projected_value_norm(values[layer, row], w_o), values.shape[3]
            protected = sinks_and_recent(n, **protection)
            for cell in cells:
                budget, first = counts(n, 1 - float(cell.ratio))
                u = base[layer, row].astype(np.float64)
                kept = critical(u, w, budget, first, protected=protected)
                scores = cell.arrays["scores"][layer, row]
                if golden.decided(cell):
                    assert_array_equal(golden.mask(kept, n), cell.arrays["keep"][layer, row])
                free = (scores < np.finfo(np.float32).max) & ~protected
                assert free.sum() > n // 4
                assert_allclose(((u + 1e-4) * w)[free], scores[free], rtol=2e-4, atol=2e-6)


@golden.every_model
def test_recorded_adaptive_form(name):
    values, base = golden.model(name).reference()["values"], golden.cells(name, "snapkv")[0].arrays["scores"]
    for layer in range(len(values)):
        w_o = golden.output_projection(name, layer)
        for row, cell in np.ndindex(values.shape[1], 3):
            cell = golden.cells(name, "critical_adakv_snapkv")[cell]
            w, n = projected_value_norm(values[layer, row], w_o), values.shape[3]
            budget = golden.kept_count(n, cell.ratio)
            u = base[layer, row].astype(np.float64)
            kept = critical_adaptive(u, w, budget, protected=sinks_and_recent(n, recent=16))
            assert_array_equal(golden.mask(kept, n), cell.arrays["keep"][layer, row])
