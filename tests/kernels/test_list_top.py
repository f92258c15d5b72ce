"""Every implementation of listing by rank against a sort: ties, missing slots, any k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.list_top import api, list_top
from tests.kernels.test_select_top import EXTREMES, expected, make

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")


def check(impl: str | None, rank: np.ndarray, k: np.ndarray, most: int) -> None:
    got = np.asarray(list_top(jnp.asarray(rank), jnp.asarray(k, jnp.int32), most=most, impl=impl))
    assert got.shape == (len(rank), most) and got.dtype == np.int32
    assert ((got >= 0) & (got < rank.shape[1])).all()
    for row, mask in zip(got, expected(rank, np.minimum(k, most)), strict=True):
        want = np.flatnonzero(mask)
        np.testing.assert_array_equal(row[: len(want)], want)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kinds", [None, 1, 7])
@pytest.mark.parametrize("n", [1, 5, 64, 300, 1100])
def test_is_a_sort(impl, n, kinds):
    k = np.array([-1, 0, 1, n // 3, n - 1, n, n + 5])
    for most in {1, n // 2 + 1, n}:
        check(impl, make(len(k), n, seed=n, kinds=kinds), k, most)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_extreme_keys(impl):
    check(impl, EXTREMES, np.arange(9), 8)
    check(impl, np.zeros((2, 40), np.uint32), np.array([0, 3]), 5)


@pytest.mark.usefixtures("native")
def test_any_leading_axes_and_one_program_for_any_k():
    rank, k = make(12, 70, kinds=9), np.arange(12) * 6
    run = jax.jit(list_top, static_argnames="most")
    for many in (k, k[::-1].copy()):
        got = run(jnp.asarray(rank.reshape(2, 3, 2, 70)), jnp.asarray(many.reshape(2, 3, 2), jnp.int32), most=66)
        assert got.shape == (2, 3, 2, 66)
        np.testing.assert_array_equal(got.reshape(12, 66), list_top(jnp.asarray(rank), jnp.asarray(many, jnp.int32), most=66))
    assert run._cache_size() == 1


def test_a_list_has_room_for_some_and_not_for_more_than_there_are():
    for most in (0, 9):
        with pytest.raises(ValueError, match=f"1 to 8 places.*most={most}"):
            list_top(jnp.asarray(make(1, 8)), jnp.ones(1, jnp.int32), most=most)
