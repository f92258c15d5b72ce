"""FastGen's worked example (A1), the numbers of a published implementation, and what must hold while decoding."""

from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import fastgen
from .fastgen import Strategy
from .softmax import softmax

GOLDEN = Path(__file__).parents[1] / "data" / "golden_methods" / "fastgen_cold.npz"
ROWS = [[1], [0.5, 0.5], [0.6, 0.1, 0.3], [0.4, 0.1, 0.2, 0.3], [0.4, 0, 0.1, 0.3, 0.2], [0.3, 0, 0.3, 0.2, 0.1, 0.1]]
RULES = fastgen.paper_list(heavy=0.15, window=0.3)


@pytest.fixture
def a1():
    a = np.array([row + [0.0] * (6 - len(row)) for row in ROWS])[None]
    return fastgen.Prompt(a, np.arange(6) == 1, np.arange(6) == 3, global_tokens=1)


def test_a1_column_means(a1):
    assert_allclose(fastgen.column_means(a1.a)[0], [0.533333, 0.14, 0.225, 0.266667, 0.15, 0.1], atol=5e-7)


def test_a1_recovery_and_choice(a1):
    assert_allclose(a1.recovery(RULES, 6)[:, 0], [0.65, 0.783333, 0.933333, 0.983333, 1], atol=5e-7)
    assert list(a1.choose(RULES, 0.9, 6)) == [2]
    assert list(a1.choose(RULES, 0.95, 6)) == [3]
    assert list(a1.choose(RULES, 1.0, 6)) == [4]


@pytest.mark.parametrize("extent, kept", [(6, [0, 1, 2, 3]), (10, [0, 1, 2, 3, 4])])
def test_a1_fill(a1, extent, kept):
    assert [list(head) for head in a1.kept(RULES, np.array([2]), extent)] == [kept]


def test_no_rule_is_enough(a1):
    assert list(a1.choose(RULES[:2], 0.99, 6)) == [0]


def golden():
    z = np.load(GOLDEN)
    prompt = fastgen.Prompt(z["attn"][0].astype(float), z["special_mask"] == 1, z["punc_mask"] == 1, int(z["global_tokens"]))
    return z, prompt, fastgen.paper_list(float(z["heavy_hitter_frac"]), float(z["recent_window"]))


def test_golden_kinds():
    z, prompt, _ = golden()
    tokens = z["input_ids"]
    assert_array_equal(fastgen.occurrences(tokens, [1]) | fastgen.occurrences(tokens, [2, 3]), prompt.special)
    assert_array_equal(np.isin(tokens, [5, 6, 7]), prompt.punctuation)


def test_golden():
    z, prompt, rules = golden()
    assert_allclose(fastgen.column_means(prompt.a), z["cum_attn"], atol=1e-6)
    assert_allclose(prompt.recovery(rules, 64), z["recovery"], atol=1e-6)
    chosen = prompt.choose(rules, float(z["min_recovery"]), 64)
    assert_array_equal(chosen, z["strategy"])
    for head, mask in zip(prompt.kept(rules, chosen, 64), z["fill_mask"], strict=True):
        assert_array_equal(head, np.flatnonzero(mask))


def test_exact_sequences_only():
    tokens = np.array([2, 3, 2, 2, 3, 1])
    assert_array_equal(fastgen.occurrences(tokens, [2, 3]), [True, True, False, True, True, False])
    assert not fastgen.occurrences(np.array([2]), [2, 3]).any()


# ---- Decoding


def random_prompt(seed, n=20):
    rng = np.random.default_rng(seed)
    z = np.where(np.tri(n, dtype=bool), 2 * rng.normal(size=(2, n, n)), -np.inf)
    return fastgen.Prompt(softmax(z), np.arange(n) == 5, np.isin(np.arange(n), [8, 12]), global_tokens=2)


def run(head, first, steps, seed=0, punctuation=()):
    """(what is held, what was attended to) after each token."""
    rng, out = np.random.default_rng(seed), []
    for t in range(first, first + steps):
        attended = head.arrive(t, t in punctuation)
        head.see(rng.dirichlet(np.ones(len(attended)), size=2), attended)
        out.append((head.held.copy(), attended.copy()))
    return out


def test_full_holds_everything():
    for held, attended in run(fastgen.decoding(random_prompt(0), 0, Strategy(full=True), 10), 20, 10):
        assert_array_equal(held, np.arange(len(held)))
        assert_array_equal(attended, held)
    assert len(held) == 30


def test_special_stores_nothing_new_yet_a_token_sees_itself():
    head = fastgen.decoding(random_prompt(0), 0, Strategy(), 10)
    assert head.budget == 3
    for i, (held, attended) in enumerate(run(head, 20, 10)):
        assert_array_equal(held, [0, 1, 5])
        assert_array_equal(attended, [0, 1, 5, 20 + i])


def test_new_punctuation_is_always_stored():
    head = fastgen.decoding(random_prompt(0), 0, Strategy(punctuation=True), 10)
    last = run(head, 20, 10, punctuation=(22, 27))[-1][0]
    assert_array_equal(last, [0, 1, 5, 8, 12, 22, 27])


@pytest.mark.parametrize("seed", range(3))
def test_heavy_and_window_hold_the_budget_the_kinds_and_the_recent(seed):
    rule = Strategy(punctuation=True, heavy=0.2, window=0.1)
    head = fastgen.decoding(random_prompt(seed), 1, rule, 20)
    assert head.budget == 2 + 1 + 2 + 4 + 8
    for i, (held, attended) in enumerate(run(head, 20, 20, seed)):
        assert len(held) == 17 and held[-1] == 20 + i
        assert_array_equal(held, attended)
        assert {0, 1, 5, 8, 12} | set(range(max(20 + i - 3, 16), 21 + i)) <= set(held.tolist())


def test_the_lowest_mean_is_overwritten():
    head = fastgen.Decoding(Strategy(heavy=0.5), np.array([0, 1, 2, 3]), {0}, 4, 8, np.array([0.0, 0.5, 0.1, 0.4]))
    assert_array_equal(head.arrive(4, False), [0, 1, 3, 4])
    head.see(np.array([[0.1, 0.0, 0.6, 0.3]]), head.held)
    assert head.seen == {0: [0.0, 0.1], 1: [0.5, 0.0], 3: [0.4, 0.6], 4: [0.3]}
    assert_array_equal(head.arrive(5, False), [0, 3, 4, 5])


def test_windows_alone_overwrite_the_oldest():
    head = fastgen.decoding(random_prompt(0), 0, Strategy(window=0.2), 10)
    assert_array_equal(head.held, [0, 1, 5, *range(14, 20)])
    held = run(head, 20, 10)[-1][0]
    assert_array_equal(held, [0, 1, 5, *range(24, 30)])


def test_only_the_last_observations_count():
    head = fastgen.Decoding(Strategy(heavy=0.5), np.arange(2), set(), 4, 8, np.array([9.0, 0.0]), history=2)
    for _ in range(2):
        head.see(np.array([[0.2, 0.8]]), head.held)
    assert head.seen == {0: [0.2, 0.2], 1: [0.8, 0.8]}


def test_a_prompt_of_one_token():
    prompt = fastgen.Prompt(np.ones((1, 1, 1)), np.array([False]), np.array([False]), global_tokens=4)
    assert list(prompt.choose(RULES, 0.9, 1)) == [0]
    assert_array_equal(prompt.kept(RULES, np.array([0]), 1)[0], [0])
    head = fastgen.decoding(prompt, 0, Strategy(), 5)
    assert [len(held) for held, _ in run(head, 1, 5)] == [2, 3, 4, 4, 4]
