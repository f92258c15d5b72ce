"""SirLLM's worked example (E29) and what must hold of every turn."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from . import sirllm
from .in_cache import held_before_append

E = np.array([0.3, 0.5, 3, 0.1, 1, 4, 0.2, 0.9])


def test_e29():
    stay = sirllm.kept(E, 1, sinks=1, recent=2, surprising=3)
    assert list(stay) == [0, 2, 5, 6, 7]
    assert_allclose(0.7 * E[stay], [0.21, 2.1, 2.8, 0.14, 0.63])


def test_e29_as_a_conversation():
    talk = sirllm.Conversation(sinks=1, recent=2, surprising=3, eta=0.7, held=np.arange(8), e=E, seen=8)
    assert list(talk.turn(np.array([5.0]))) == [0, 2, 5, 6, 7]
    assert list(talk.held) == [0, 2, 5, 6, 7, 8]
    assert_allclose(talk.e, [0.21, 2.1, 2.8, 0.14, 0.63, 5.0])
    assert list(talk.positions()) == [0, 1, 2, 3, 4, 5]


def test_e29_without_making_room_in_the_surprising():
    """One surprising token more, one recent token less: 3 by surprisal and 5 in all."""
    assert list(sirllm.kept(E, 1, sinks=1, recent=1, surprising=4)) == [0, 2, 4, 5, 7]


def test_surprisal_is_shifted_by_one_and_starts_at_the_maximum():
    logits = np.log(np.array([[0.5, 0.25, 0.25], [0.1, 0.1, 0.8], [0.3, 0.3, 0.4]]))
    e = sirllm.surprisal(logits, np.array([0, 1, 2]))
    assert_allclose(e, [np.log(4), np.log(4), -np.log(0.8)])
    assert_allclose(sirllm.surprisal(logits + 7, np.array([0, 1, 2])), e)
    assert list(sirllm.surprisal(logits[:1], np.array([2]))) == [0]


@pytest.mark.parametrize("new", [1, 2, 3, 4, 5, 6, 9])
def test_a_turn_of_any_length_fits_or_leaves_the_sinks(new):
    stay = sirllm.kept(E, new, sinks=1, recent=2, surprising=3)
    assert 0 in stay and len(stay) == max(6 - new, 1)
    if new >= 3:
        assert list(stay) == [0, *range(8 - max(5 - new, 0), 8)]


def test_everything_that_fits_stays():
    assert list(sirllm.kept(E, 2, sinks=4, recent=2, surprising=4)) == list(range(8))
    assert list(sirllm.kept(E[:1], 1, sinks=1, recent=0, surprising=1)) == [0]


@pytest.mark.parametrize("new", [1, 2, 3])
def test_without_surprising_places_it_is_streaming_llm(new):
    held = sirllm.kept(np.arange(20.0), new, sinks=2, recent=6, surprising=0)
    assert_array_equal(held, held_before_append(np.arange(20), new, sinks=2, recent=6))


def test_a_surprising_sink_leaves_its_place_to_a_recent_token():
    assert list(sirllm.kept(np.array([9.0, 1, 2, 3, 4, 0]), 1, sinks=1, recent=1, surprising=2)) == [0, 4, 5]


def test_decay_comes_with_every_turn():
    talk = sirllm.Conversation(eta=0.5)
    for _ in range(3):
        talk.turn(np.array([8.0]))
    assert_allclose(talk.e, [2, 4, 8])


def test_a_surprising_token_stays_until_its_decay():
    talk = sirllm.Conversation(sinks=1, recent=2, surprising=2, eta=0.5)
    talk.turn(np.array([0.0, 16.0, 0.0]))
    held = []
    for _ in range(8):
        talk.turn(np.array([1.0]))
        held.append(1 in talk.held)
    assert held[0] and not held[-1] and held == sorted(held, reverse=True)
