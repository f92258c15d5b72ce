"""Every implementation of selection by rank against a sort: ties, missing slots, any k."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.select_top import api, select_top
from kvjax.kernels.select_top.shapes import SHAPES

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")
EXTREMES = np.array([[0, 2**32 - 1, 1, 2**31, 2**31 - 1, 2**32 - 1, 1, 0]] * 9, np.uint32)


def make(rows: int, n: int, seed: int = 0, kinds: int | None = None) -> np.ndarray:
    """Keys [rows, n], a tenth of them 0; of few `kinds`, so that many are equal, or over all of 32 bits."""
    rng = np.random.default_rng(seed)
    drawn = rng.integers(1, 2**32, size=(rows, n), dtype=np.uint32)
    if kinds is not None:
        drawn = rng.choice(drawn[0, :kinds], size=(rows, n))
    return np.where(rng.random((rows, n)) < 0.1, np.uint32(0), drawn)


def expected(rank: np.ndarray, k: np.ndarray) -> np.ndarray:
    """The rule, row by row: largest first, then lowest index; 0 is no key."""
    mask = np.zeros(rank.shape, bool)
    for row, keys, many in zip(mask, rank.astype(np.int64), k, strict=True):
        row[np.argsort(-keys, kind="stable")[: max(many, 0)]] = True
    return mask & (rank > 0)


def check(impl: str | None, rank: np.ndarray, k: np.ndarray) -> None:
    np.testing.assert_array_equal(select_top(jnp.asarray(rank), jnp.asarray(k, jnp.int32), impl=impl), expected(rank, k))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("kinds", [None, 1, 7])
@pytest.mark.parametrize("n", [1, 5, 64, 300, 1100])
def test_is_a_sort(impl, n, kinds):
    k = np.array([-1, 0, 1, n // 3, n - 1, n, n + 5])
    check(impl, make(len(k), n, seed=n, kinds=kinds), k)


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_extreme_keys(impl):
    check(impl, EXTREMES, np.arange(9))
    check(impl, np.zeros((2, 40), np.uint32), np.array([0, 3]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_rows_of_fewer_keys_than_wanted(impl):
    """Such a row has no threshold, and waits for the others: for those of few keys too."""
    for seed in range(20):
        rank = make(6, 40, seed=seed) * (np.random.default_rng(seed).random((6, 40)) < [[0.1], [0.2], [0.5], [1], [0.9], [0.3]])
        check(impl, rank, np.array([30, 31, 32, 7, 20, 40]))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(impl, name):
    shape = SHAPES[name]
    check(impl, make(shape.rows, shape.n), np.full(shape.rows, shape.k))


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
def test_any_leading_axes_and_vmap(impl):
    rank, k = make(12, 70, kinds=9), np.arange(12) * 6
    want = expected(rank, k).reshape(2, 3, 2, 70)
    rank, k = jnp.asarray(rank).reshape(2, 3, 2, 70), jnp.asarray(k, jnp.int32).reshape(2, 3, 2)
    run = lambda rank, k: select_top(rank, k, impl=impl)  # noqa: E731
    np.testing.assert_array_equal(run(rank, k), want)
    np.testing.assert_array_equal(jax.vmap(run, 1, 1)(rank, k), want)


def test_k_is_data():
    run = jax.jit(select_top)
    rank = jnp.asarray(make(3, 200))
    counts = [int(run(rank, jnp.full(3, k, jnp.int32)).sum()) for k in (1, 20, 100)]
    assert run._cache_size() == 1 and counts == [3, 60, 300]


def test_an_unknown_implementation_is_named():
    with pytest.raises(ValueError, match="unknown impl 'sort' of selection by rank; there are xla, reference, native, triton"):
        select_top(jnp.asarray(make(1, 8)), jnp.ones(1, jnp.int32), impl="sort")
