"""Every implementation of weighted values against NumPy."""

import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.weighted_values import api, weighted_values
from kvjax.kernels.weighted_values.shapes import SHAPES
from kvjax.types import BLOCK
from tests.decode_loop import unchecked

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")


def make(lengths, share: float, g: int, t: int, d: int, dtype: str = "float32", seed: int = 0):
    """Values, starts and weights; slots that no weight reads behind the last used one are NaN, and so is the slack."""
    rng, (b, h) = np.random.default_rng(seed), np.shape(lengths)
    sizes = -(-np.ravel(lengths) // 8) * 8
    start = (np.cumsum(sizes) - sizes).reshape(b, h)
    weights = np.zeros((b, h, g, t, max(1, np.max(lengths))), np.float32)
    v = np.full((sizes.sum() + BLOCK, d), np.nan, np.float32)
    for at in np.ndindex(b, h):
        n = lengths[at[0]][at[1]]
        read = rng.random(n) < share
        weights[at][..., :n] = rng.random((g, t, n)) * read * (rng.random((g, t, n)) < 0.9)
        last = np.flatnonzero(weights[at].any((0, 1)))
        v[start[at] : start[at] + (last[-1] + 1 if len(last) else 0)] = rng.normal(size=(last[-1] + 1 if len(last) else 0, d))
    return jnp.asarray(v, dtype), jnp.asarray(start, jnp.int32), jnp.asarray(weights)


def wanted(v, start, weights):
    out = np.zeros((*weights.shape[:-1], v.shape[1]))
    for at in np.ndindex(*weights.shape[:2]):
        read = np.flatnonzero(np.asarray(weights[at]).any((0, 1)))
        out[at] = np.asarray(weights[at], np.float64)[..., read] @ np.asarray(v, np.float64)[int(start[at]) + read]
    return out


def check(impl, *shape, dtype="float32"):
    operands = make(*shape, dtype=dtype)
    right = wanted(*operands)
    np.testing.assert_allclose(weighted_values(*operands, impl=impl), right, atol=2e-6 * max(1, np.abs(right).max()))


CASES = {
    "nothing": ([[0, 0]], 1.0, 2, 1, 16),
    "empty beside full": ([[0, 5, 600]], 1.0, 1, 1, 16),
    "sparse": ([[3000, 257], [256, 1]], 0.03, 3, 1, 64),
    "many queries": ([[300, 40]], 0.5, 3, 9, 32),
    "80 channels": ([[300, 40]], 0.5, 5, 1, 80),
}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_matches_numpy(impl, dtype, case):
    check(impl, *CASES[case], dtype=dtype)


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(impl, name):
    shape = SHAPES[name]
    check(impl, shape.lengths, shape.share, shape.g, shape.t, shape.d)


@pytest.mark.usefixtures("native")
def test_slots_without_weight_are_not_read():
    v, start, weights = make([[700, 30]], 1.0, 2, 1, 16)
    weights = weights.at[..., 5].set(0).at[..., 300:600].set(0)
    gone = v.at[start[0, 0] + 5].set(jnp.nan).at[start[0, 0] + 300 : start[0, 0] + 600].set(jnp.nan)
    got = weighted_values(gone, start, weights, impl="native")
    np.testing.assert_array_equal(got[:, 0], weighted_values(v, start, weights, impl="native")[:, 0])


def test_refusals_say_what_was_expected():
    v, start, weights = make([[30, 7]], 1.0, 2, 1, 8)
    with unchecked(), pytest.raises(ValueError, match="v must be"):
        weighted_values(v, start[0], weights)
    with pytest.raises(ValueError, match="multiple of 16 numbers"):
        weighted_values(v, start, weights, impl="native")
    np.testing.assert_array_equal(weighted_values(v, start, weights), weighted_values(v, start, weights, impl="xla"))
