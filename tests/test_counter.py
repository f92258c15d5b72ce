"""Counts of what retrievers fetch: beyond 2^32, and of bytes beyond 2^31."""

import jax
import jax.numpy as jnp
import numpy as np

from kvjax.cache.counter import Counter
from kvjax.encode import OnDevice
from kvjax.retrieve.elsewhere import Fetching
from kvjax.retrieve.pivot_state import empty


def test_words_carry():
    count = Counter(low=jnp.array([2**32 - 3, 7], jnp.uint32), high=jnp.array([0, 2], jnp.uint32)).plus(jnp.array([5, 0]))
    assert count.low.tolist() == [2, 7] and count.high.tolist() == [1, 2]
    np.testing.assert_array_equal(count.total, [2**32 + 2, 2**33 + 7])
    assert jax.jit(Counter.plus)(Counter.zeros(1), jnp.array([2**31 - 1])).total.tolist() == [2**31 - 1]


def test_a_fetch_beyond_32_bits_and_a_row_that_has_ended():
    near = Counter(low=jnp.full(2, 2**31 - 100, jnp.uint32), high=jnp.zeros(2, jnp.uint32))
    state = Fetching(away=None, fetched=near, moved=near)
    state = state.took(jnp.zeros((2, 8, 2048), jnp.int32), jnp.array([1000, 1000]), jnp.array([[True], [False]]))
    assert state.fetched.total.tolist() == [2**31 + 900, 2**31 - 100]
    assert state.moved.total.tolist() == [2**31 - 100 + 8 * 2048] * 2


def test_bytes_of_pivots_beyond_2_gb():
    sizes = dict(slots=8, traced=1, away=jnp.zeros((1, 1, 2), jnp.int32), p=1, m=1, n=8, w=1)
    state = empty(jnp.zeros((2, 1, 128), jnp.bfloat16), host=OnDevice(), **sizes)
    count = Counter.zeros(1).plus(jnp.array([5_000_000]))
    state = state.replace(fetched=count, moved=count)
    assert state.fetched_nbytes.tolist() == state.moved_nbytes.tolist() == [5_000_000 * 512]


def test_stacked():
    one, two = Counter.zeros(1).plus(jnp.array([3])), Counter.zeros(2).plus(jnp.array([4, 5]))
    assert Counter.stack([one, two]).total.tolist() == [3, 4, 5]
