"""StreamingLLM's E1 number by number, keys and queries rotated one by one, and what must hold of the ranks."""

import numpy as np
import pytest
from numpy.testing import assert_allclose

from .in_cache import held_before_append, rotated_logits

IN_CACHE, TRUE = [-0.4161, 0.0707, 0.5403, 0.8776, 1.0], [-0.9365, -0.9900, 0.5403, 0.8776, 1.0]


def turned(x, angle):
    """One rotary pair at position p, angle = p theta."""
    return np.array([np.cos(angle) * x[0] - np.sin(angle) * x[1], np.sin(angle) * x[0] + np.cos(angle) * x[1]])


def appended(held, now, new, *, sinks, recent):
    """Positions held once the tokens now .. now + new - 1 are in."""
    return np.append(held_before_append(held, new, sinks=sinks, recent=recent), np.arange(now, now + new))


def test_e1_what_is_held():
    held = appended(np.arange(7), 7, 1, sinks=2, recent=3)
    assert list(held[:-1]) == [0, 1, 5, 6]
    assert list(held) == [0, 1, 5, 6, 7]


@pytest.mark.parametrize("by_rank, at, want", [(True, [0, 1, 2, 3, 4], IN_CACHE), (False, [0, 1, 5, 6, 7], TRUE)])
def test_e1_positions_and_logits(by_rank, at, want):
    held, x = appended(np.arange(7), 7, 1, sinks=2, recent=3), np.array([1.0, 0.0])
    positions = np.arange(len(held)) if by_rank else held
    assert list(positions) == at
    assert_allclose([turned(x, 0.5 * at[-1]) @ turned(x, 0.5 * p) for p in at], want, atol=5e-5)
    assert_allclose(rotated_logits(x, np.tile(x, (5, 1)), 0.5, at[-1], positions), want, atol=5e-5)


def test_the_two_policies_agree_until_something_goes():
    rng = np.random.default_rng(0)
    keys, held, agree = rng.normal(size=(9, 2)), np.arange(0), []
    for now in range(9):
        held, q = appended(held, now, 1, sinks=2, recent=3), rng.normal(size=2)
        ranks = np.arange(len(held))
        logits = [rotated_logits(q, keys[held], 0.7, at[-1], at) for at in (ranks, held)]
        agree.append(np.allclose(*logits))
    assert agree == [True] * 5 + [False] * 4


@pytest.mark.parametrize("new", [1, 2, 3])
def test_the_cache_is_exactly_full_after_every_append_beyond_its_size(new):
    held = np.arange(0)
    for now in range(0, 30, new):
        held = appended(held, now, new, sinks=2, recent=3)
        assert len(held) == min(now + new, 5)
        assert list(held[:2]) == list(range(min(2, len(held))))
        assert list(held[-3:]) == list(range(max(0, now + new - 3), now + new))


def test_more_tokens_than_the_window_leave_the_sinks_alone():
    assert list(appended(np.arange(7), 7, 4, sinks=2, recent=3)) == [0, 1, 7, 8, 9, 10]


def test_without_sinks_it_is_a_local_window_with_ranks():
    held = np.arange(0)
    for now in range(8):
        held = appended(held, now, 1, sinks=0, recent=3)
    assert list(held) == [5, 6, 7]


def test_one_token():
    assert list(appended(np.arange(0), 0, 1, sinks=2, recent=3)) == [0]
