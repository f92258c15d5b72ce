"""RoCo's worked example (E5), the numbers of its authors' code, and what must hold at every step."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import roco
from .attention import attention_rows
from .decode_head import decode_head
from .softmax import softmax

GOLDEN = Path(__file__).parents[1] / "data" / "golden_methods" / "roco.npz"


def test_e5_the_lowest_mean_of_the_steady():
    s1, s2, c = np.array([1.0, 0.6, 0.3, 0.5, 0.2]), np.array([0.25, 0.09, 0.12, 0.13, 0.04]), np.array([5.0, 4, 3, 2, 1])
    statistics = roco.Statistics(s1, s2, c)
    assert_allclose(statistics.mean(), [0.2, 0.15, 0.1, 0.25, 0.2])
    assert_allclose(statistics.spread(), [0.1, 0, 0.1732, 0.05, 0], atol=5e-5)
    guarded = np.arange(5) >= 4
    gone = roco.evicted(statistics.mean(), statistics.spread(), guarded, 3)
    assert list(gone) == [1]
    assert list(np.setdiff1d(np.arange(5), gone)) == [0, 2, 3, 4]
    assert statistics.mean()[:4].argmin() == 2


def test_feasible_counts():
    assert roco.feasible_decode(40) == 28
    assert roco.feasible_decode(10) == 7
    assert roco.feasible_prefill(100, 8) == 86
    assert roco.feasible_prefill(8, 8) == 8
    assert roco.feasible_at_once(101, 100) == roco.feasible_prefill(100, 1) == 86
    assert roco.feasible_at_once(1000, 100) == 985


@pytest.mark.parametrize("layer", range(2))
@pytest.mark.parametrize("head", range(3))
def test_golden(layer, head):
    z = np.load(GOLDEN)
    attention, rule, evictions = z["attn_per_step"][:, layer, head], roco.Decoding(int(z["budget"])), []
    assert roco.feasible_decode(rule.budget) == rule.budget - int(z["recent_window"])
    for t, row in enumerate(attention):
        before = np.append(rule.generated, t)
        rule.step(row[None, : len(before)].astype(np.float64), t)
        gone = np.setdiff1d(before, rule.generated)
        if len(gone):
            evictions.append(int(np.searchsorted(before, gone[0])))
    assert evictions == list(z["evicted_slot"][:, layer, head])
    assert_array_equal(rule.generated, z["kept_token_ids"][layer, head])
    assert_allclose(rule.statistics.s1, z["final_scores"][layer, head, :40], rtol=2e-5)
    assert_allclose(rule.statistics.s2, z["final_squares"][layer, head, :40], rtol=2e-5)
    assert_array_equal(rule.statistics.c, z["final_counter"][layer, head, :40])


def random_head(seed, n):
    rng = np.random.default_rng(seed)
    return 2 * rng.normal(size=(2, n, 8)), rng.normal(size=(n, 8)), rng.normal(size=(n, 8))


@pytest.mark.parametrize("seed", range(3))
def test_the_prompt_and_the_newest_stay(seed):
    q, k, v = random_head(seed, 60)
    for step in decode_head(roco.Decoding(14), q, k, v, 12):
        t = step.held[-1]
        generated = t - 11
        assert len(step.held) == 12 + min(generated, 14)
        assert_array_equal(step.held[:12], np.arange(12))
        assert_array_equal(step.held[-min(10, generated) :] if generated else [], np.arange(t - min(10, generated) + 1, t + 1))


def test_within_the_budget_is_full_attention():
    q, k, v = random_head(0, 30)
    last = decode_head(roco.Decoding(20), q, k, v, 10)[-1]
    assert_array_equal(last.held, np.arange(30))
    assert_allclose(last.out, softmax(q[:, -1] @ k.T / np.sqrt(8)) @ v)


def test_a_prompt_of_one_token():
    q, k, v = random_head(1, 40)
    steps = decode_head(roco.Decoding(12), q, k, v, 1)
    assert [len(s.held) for s in steps] == [*range(1, 13), *[13] * 28]
    assert all(s.held[0] == 0 for s in steps)


def test_negative_variances_are_clipped():
    statistics = roco.Statistics(np.array([0.3]), np.array([0.02]), np.array([3.0]))
    assert statistics.spread()[0] == 0


def test_ties_go_to_the_lower_position():
    even, guarded = np.zeros(4), np.zeros(4, bool)
    assert list(roco.evicted(even, even, guarded, 3)) == [2]


def test_a_mean_has_no_bias_to_early_tokens():
    """The same attention for every token at every step: a later token has the same mean as an early one."""
    rule = roco.Decoding(20)
    for t in range(15):
        rule.step(np.full((1, t + 1), 0.1), t)
    assert_allclose(rule.statistics.mean(), 0.1)
    assert rule.statistics.s1[0] > rule.statistics.s1[-1]


def test_a_prompt_in_strides():
    rng = np.random.default_rng(5)
    q, k = 2 * rng.normal(size=(1, 2, 60, 8)), rng.normal(size=(1, 60, 8))
    rule = roco.Prompt(budget=24, stride=6)
    rule.start()
    for first in range(24, 60, 6):
        at = np.append(rule.held, np.arange(first, first + 6))
        rows = attention_rows(q[:, :, first : first + 6], k[:, at])[0]
        rule.feed(rows, np.arange(first, first + 6))
        assert len(rule.held) == 24
        assert_array_equal(rule.held[:4], np.arange(4))
        assert_array_equal(rule.held[-10:], np.arange(first - 4, first + 6))
        assert rule.statistics.c[-1] == 1 and rule.statistics.c[0] == first - 18


def test_a_stride_of_one_evicts_one():
    rule = roco.Prompt(budget=3, stride=1, sinks=1, tail=1)
    rule.start()
    rule.feed(np.array([[[0.4, 0.1, 0.2, 0.3]]]), np.array([3]))
    assert_array_equal(rule.held, [0, 2, 3])
