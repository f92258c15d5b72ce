"""Readings of the host run while the device works: a slow one is waited for at its use, and not before. Order tells, not time."""

import threading
import time

import numpy as np
import pytest

import kvjax
from kvjax.encode import ByCallback, OnDevice, Stored
from kvjax.placement import begun
from kvjax.placement.begun import BegunReads
from tests import overlapping
from tests.overlapping import infinigen, slow_reads, watched

LAYERS, STEPS = 3, 8


def heterocache(home):
    policy = overlapping.heterocache(home)
    return policy.replace(encode=Stored(placement=ByCallback())) if isinstance(home, ByCallback) else policy


def decoded(lm, pre, policy):
    return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=STEPS, stop=(), return_logits=True)


@pytest.mark.parametrize(("method", "ahead"), [(heterocache, LAYERS), (infinigen, 1)])
def test_a_slow_reading_ends_while_the_device_works(lm, pre, monkeypatch, method, ahead):
    """A reading ends when all layers of the next step have begun (HeteroCache), or the layer that it is for (InfiniGen).

    A program that waited for it sooner, or began it later, would wait until the reading loses its patience.
    """
    want, log = decoded(lm, pre, method(OnDevice())), slow_reads(monkeypatch, ahead)
    try:
        got = decoded(watched(lm), pre, method(ByCallback()))
    finally:
        log.end()
    np.testing.assert_array_equal(got.tokens, want.tokens)
    np.testing.assert_allclose(got.logits, want.logits, atol=2e-5)
    taken = log.events.count("take")
    readings = 2 * 2 * (STEPS // 5) if method is heterocache else 2 * (LAYERS - 1) * STEPS  # keys and values
    assert (taken, log.direct) == (readings, 0)
    assert log.between() == [ahead] * taken
    assert log.nbytes == got.cache.retrieval.moved_nbytes.sum() >= got.cache.retrieval.fetched_nbytes.sum() > 0
    assert log.events.count("layer") == LAYERS * STEPS and len(log.met) >= taken and all(log.met[:taken])


def test_a_cache_between_two_steps_reads_what_a_later_program_waits_for(lm, pre):
    """Decoded twice from one cache: what the first took is read anew for the second."""
    policy = heterocache(ByCallback())
    run = lambda cache, new: kvjax.decode(lm, cache, policy, max_new_tokens=new, stop=(), pool_budget=110)  # noqa: E731
    first = run(kvjax.compress(pre, policy), 5)
    assert first.cache.retrieval.pending.all() and len(_begun(first.cache)) == 2
    both = [run(first.cache, 7) for _ in range(2)]
    assert len(_begun(first.cache)) == 0
    want = decoded(lm, pre, heterocache(OnDevice()))
    for then in both:
        np.testing.assert_array_equal([*first.tokens[0], *then.tokens[0]][:STEPS], want.tokens[0])
        np.testing.assert_array_equal(then.cache.logits, both[0].cache.logits)


def _begun(cache):
    return cache.retrieval.k.owner.begun


def test_what_is_never_taken_is_forgotten():
    reads = BegunReads()
    for i in range(6):
        reads.begin(i, lambda i=i: np.full(1, i), nbytes=1 << 26)  # four of them are as much as is held
    assert len(reads) == 4 and 1 not in reads and 2 in reads
    assert reads.take(5, lambda: None) == 5 and reads.take(1, lambda: np.full(1, -3)) == -3


def test_two_threads_that_begin_the_same_begin_it_once(monkeypatch):
    """A second beginning would count bytes that nobody takes, and readings would be forgotten too soon from then on."""
    threads = begun._threads()

    class Slow:
        def submit(self, read):
            time.sleep(0.1)  # the other thread comes meanwhile
            return threads.submit(read)

    monkeypatch.setattr(begun, "_threads", Slow)
    reads = BegunReads()
    both = [threading.Thread(target=reads.begin, args=("a", lambda: np.full(1, 7), 1 << 26)) for _ in range(2)]
    for thread in both:
        thread.start()
    for thread in both:
        thread.join()
    assert reads.take("a", lambda: None) == 7 and len(reads) == 0
    for i in range(4):
        reads.begin(i, lambda: np.zeros(1), nbytes=1 << 26)
    assert len(reads) == 4 and 0 in reads


def test_a_reading_that_fails_says_so_where_it_is_waited_for():
    reads = BegunReads()
    reads.begin("a", lambda: np.zeros(1)[5], nbytes=8)
    with pytest.raises(IndexError, match="out of bounds"):
        reads.take("a", lambda: np.zeros(1))
