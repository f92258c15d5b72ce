"""LazyEviction's worked example (E7) and what must hold at every step."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import lazy_eviction as lazy
from .decode_head import decode_head
from .highest import highest
from .softmax import softmax

TS, MRI = np.array([19, 10, 5, 2, 18]), np.array([1, 8, 3, 2, 0])


def test_e7_intervals():
    ts, mri, trace = np.array([0]), np.array([0]), {}
    for t, a in enumerate([0.2, 0, 0.2, 0, 0, 0, 0.3], start=1):
        ts, mri = lazy.update(ts, mri, np.array([a]), t, 0.1)
        trace[t] = (int(ts[0]), int(mri[0]))
    assert trace == {1: (1, 1), 2: (1, 1), 3: (3, 2), 4: (3, 2), 5: (3, 2), 6: (3, 2), 7: (7, 4)}


def test_e7_ranking():
    assert_allclose(lazy.due(TS, MRI, 20), [0.5379, 0.4454, 0.0134, 0.0002, 0], atol=5e-5)
    assert_allclose(lazy.short_period(MRI), [1, 0.0018, 0.2384, 0.5379, 0], atol=5e-5)
    assert_allclose(lazy.importance(TS, MRI, 20), [1.5379, 0.4472, 0.2518, 0.5381, 0], atol=5e-5)
    assert list(highest(lazy.importance(TS, MRI, 20), 2)) == [0, 3]
    assert list(highest(lazy.due(TS, MRI, 20), 2)) == [0, 1]


def test_the_release_has_one_more_in_the_exponent():
    """Two tokens at t = 20: as printed the first stays, in the release the second, whose period is short."""
    ts, mri = np.array([18, 2]), np.array([10, 2])
    assert_allclose(lazy.importance(ts, mri, 20), [0.9006, 0.5381], atol=5e-5)
    assert_allclose(lazy.importance(ts, mri, 20, shift=1.0), [0.4632, 0.5380], atol=5e-5)


def test_e7_as_a_cache():
    rule = lazy.Decoding(3, 1, held=np.array([0, 1, 2, 3, 4, 20]), ts=np.append(TS, 20), mri=np.append(MRI, 0))
    rule.evict(20)
    assert_array_equal(rule.held, [0, 3, 20])
    assert_array_equal(rule.ts, [19, 2, 20])
    assert_array_equal(rule.mri, [1, 2, 0])


def test_hit_every_step_is_a_period_of_1_and_never_hit_is_0():
    rule = lazy.Decoding(100, 10, alpha=0.1)
    for t in range(6):
        a = np.zeros((1, t + 1))
        a[0, 0] = 1
        rule.see(a, t)
    assert rule.mri[0] == 1 and rule.ts[0] == 5
    assert_array_equal(rule.mri[1:], 0)
    assert_array_equal(rule.ts[1:], np.arange(5))
    assert_allclose(lazy.importance(rule.ts, rule.mri, 5), [2, 0, 0, 0, 0, 0])


def test_a_hit_by_its_own_row_is_a_period_of_1():
    """Token 0 hits itself, then is hit at step 3; token 1 hits itself alone; token 2 starts at 1 and is hit at 3."""
    rule = lazy.Decoding(100, 10, alpha=0.1)
    for t, row in enumerate([[1], [0, 1], [0, 1, 0], [0.5, 0, 0.5, 0]]):
        rule.see(np.array([row], float), t)
    assert_array_equal(rule.ts, [3, 2, 3, 2])
    assert_array_equal(rule.mri, [3, 1, 2, 0])


def test_a_hit_needs_alpha_and_one_head_is_enough():
    ts, mri = lazy.update(np.array([0, 0]), np.array([0, 0]), np.array([0.09, 0.1]), 4, 0.1)
    assert list(ts) == [0, 4] and list(mri) == [0, 4]
    rule = lazy.Decoding(100, 10, alpha=0.3, held=np.array([0]), ts=np.array([0]), mri=np.array([0]))
    rule.see(np.array([[0.05, 0.95], [0.5, 0.5]]), 3)
    assert rule.ts[0] == 3 and rule.mri[0] == 3


def random_head(seed, t):
    rng = np.random.default_rng(seed)
    return 3 * rng.normal(size=(2, t, 8)), rng.normal(size=(t, 8)), rng.normal(size=(t, 8))


@pytest.mark.parametrize("seed", range(3))
def test_the_cache_grows_for_a_window_and_is_cut(seed):
    q, k, v = random_head(seed, 60)
    steps = decode_head(lazy.Decoding(16, 5, alpha=0.05), q, k, v, 12)
    sizes = [len(s.held) for s in steps]
    assert sizes[:11] == [12, 13, 14, 15, 16, 16, 17, 18, 19, 20, 16]
    assert all(size == 16 for size in sizes[5::5]) and max(sizes) == 20
    for i, step in enumerate(steps):
        assert_array_equal(step.held[-5:], np.arange(7 + i, 12 + i))


def test_a_window_of_1_acts_every_step():
    q, k, v = random_head(0, 30)
    steps = decode_head(lazy.Decoding(12, 1, alpha=0.05, after_prefill=True), q, k, v, 20)
    assert {len(s.held) for s in steps} == {12}


def test_a_long_prompt_is_cut_at_the_first_turn():
    q, k, v = random_head(0, 30)
    sizes = [len(s.held) for s in decode_head(lazy.Decoding(12, 4, alpha=0.05), q, k, v, 20)]
    assert sizes[:6] == [20, 21, 22, 23, 12, 13]


def test_intervals_span_evictions():
    """Positions are absolute: a token kept through an eviction has the gap that it would have without one."""
    rng = np.random.default_rng(2)
    one, other = lazy.Decoding(6, 2, alpha=0.3), lazy.Decoding(99, 2, alpha=0.3)
    for t in range(30):
        full = (rng.random(t + 1) < 0.2).astype(float)
        one.step(full[np.append(one.held, t)][None], t)
        other.step(full[None], t)
        assert_array_equal(one.ts, other.ts[one.held])
        assert_array_equal(one.mri, other.mri[one.held])
    assert len(one.held) == 6


def test_within_the_budget_is_full_attention():
    q, k, v = random_head(4, 12)
    last = decode_head(lazy.Decoding(12, 3), q, k, v, 1)[-1]
    assert_array_equal(last.held, np.arange(12))
    assert_allclose(last.out, softmax(q[:, -1] @ k.T / np.sqrt(8)) @ v)
