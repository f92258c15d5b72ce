"""Exact integer budgets on the device against the slow transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvjax.allocate.exact import exact_alloc
from tests.reference import exact_alloc as reference

SIZE = 6


@st.composite
def problems(draw):
    """Weights over many magnitudes, zeros and ties among them, bounds, and a total that may lie outside them."""
    weight = st.one_of(st.just(0.0), st.integers(1, 8).map(float), st.floats(1e-9, 1e9))
    w = draw(st.lists(weight, min_size=SIZE, max_size=SIZE))
    lo = np.array(draw(st.lists(st.integers(0, 9), min_size=SIZE, max_size=SIZE)))
    hi = lo + np.array(draw(st.lists(st.integers(0, 400), min_size=SIZE, max_size=SIZE)))
    return np.float32(w), draw(st.integers(max(0, lo.sum() - 5), hi.sum() + 5)), lo, hi


def as_arrays(w, total, lo, hi):
    return jnp.asarray(w, jnp.float32), jnp.asarray(total, jnp.int32), jnp.asarray(lo, jnp.int32), jnp.asarray(hi, jnp.int32)


@settings(max_examples=300, deadline=None)
@given(problems())
def test_agrees_with_the_transcription(problem):
    w, total, lo, hi = problem
    y = np.asarray(jax.jit(exact_alloc)(*as_arrays(*problem)))
    np.testing.assert_array_equal(y, reference.exact_alloc(np.float64(w), total, lo, hi))
    assert y.sum() == np.clip(total, lo.sum(), hi.sum()) and (lo <= y).all() and (y <= hi).all()


def test_counter_example():
    w = [0.002378, 0.137034, 0.000316, 0.742190, 0.006488]
    y = exact_alloc(*as_arrays(w, 33, [5, 2, 2, 2, 5], [25, 5, 20, 25, 30]))
    assert y.tolist() == [5, 3, 2, 18, 5] and y.dtype == jnp.int32


def test_parts_that_tie_go_to_the_lower_index():
    """25 2/3 and 14 2/3 beside entries at their bounds: the last bits of either say nothing."""
    y = exact_alloc(*as_arrays([7, 1, 4, 2, 0, 6], 62, [3, 2, 3, 3, 0, 3], [26, 46, 22, 5, 30, 13]))
    assert y.tolist() == [26, 4, 14, 5, 0, 13]


@pytest.mark.parametrize("total, want", [(99, [4, 4, 4]), (2, [1, 1, 1]), (8, [3, 3, 2])])
def test_ends_and_ties(total, want):
    assert exact_alloc(*as_arrays([0.0] * 3, total, [1] * 3, [4] * 3)).tolist() == want


def test_under_jit_and_vmap_rows_are_what_they_are_alone():
    rng = np.random.default_rng(0)
    w, lo = rng.exponential(size=(5, 32)) ** 3, rng.integers(0, 9, (5, 32))
    hi = lo + rng.integers(1, 5000, (5, 32))
    rows = as_arrays(w, rng.integers(lo.sum(1), hi.sum(1)), lo, hi)
    alone = np.stack([exact_alloc(*(x[i] for x in rows)) for i in range(5)])
    for together in (exact_alloc, jax.jit(exact_alloc), jax.vmap(exact_alloc), jax.jit(jax.vmap(exact_alloc))):
        np.testing.assert_array_equal(together(*rows), alone)
    np.testing.assert_array_equal(alone.sum(1), rows[1])


def test_is_exact_where_float32_is_not():
    """Halves of 2**25 + 1: float32 has no odd integers there."""
    y = exact_alloc(*as_arrays([1.0, 1.0], 2**25 + 1, [0, 0], [2**26, 2**26]))
    assert y.tolist() == [2**24 + 1, 2**24]
