"""Every implementation of a SwiGLU's first half against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.gated_linear import api, gated_linear
from kvjax.kernels.linear.native import MOST_ROWS
from kvjax.kernels.native import has_pairs
from tests.decode_loop import unchecked

#: Rows of a step and of a prompt: blocks and panels that are whole and not, more channels than are multiplied at a time.
CASES = {
    "one row": (1, 32, 7),
    "one more than few": (MOST_ROWS + 1, 64, 64),
    "parts of a block and of a panel": (200, 576, 130),
    "long rows": (97, 2080, 192),
}


def make(rows, inputs, outputs, dtype="float32"):
    rng = np.random.default_rng(rows * inputs + outputs)
    x = jnp.asarray(rng.normal(size=(rows, inputs)), dtype)
    return x, *(jnp.asarray(rng.normal(size=(outputs, inputs)) / np.sqrt(inputs), dtype) for _ in range(2))


def wanted(x, gate, up):
    x, gate, up = (np.asarray(a, np.float64) for a in (x, gate, up))
    z = x @ gate.T
    return z / (1 + np.exp(-z)) * (x @ up.T)


@pytest.mark.parametrize("impl", [None, *api.IMPLEMENTATIONS, "native"])
@pytest.mark.parametrize("dtype, bound", [("float32", 3e-6), ("bfloat16", 3e-2)])
@pytest.mark.parametrize("case", CASES)
def test_matches_numpy(impl, dtype, bound, case):
    if impl == "native" and (CASES[case][0] <= MOST_ROWS or dtype == "bfloat16" and not has_pairs()):
        pytest.skip("XLA's on this processor")
    operands = make(*CASES[case], dtype)
    got, right = gated_linear(*operands, impl=impl), wanted(*operands)
    assert got.dtype == operands[0].dtype
    np.testing.assert_allclose(np.asarray(got, np.float64), right, rtol=bound, atol=bound * max(1, np.abs(right).max()))


@pytest.mark.usefixtures("native")
def test_large_numbers_neither_overflow_nor_vanish():
    x = jnp.linspace(-200, 200, 80)[:, None] * jnp.eye(1, 16)
    gate, up = jnp.eye(1, 16), jnp.eye(1, 16)
    z = np.asarray(x[:, 0], np.float64)
    np.testing.assert_allclose(gated_linear(x, gate, up, impl="native")[:, 0], z * z / (1 + np.exp(-z)), rtol=1e-5, atol=1e-30)


@pytest.mark.usefixtures("native")
def test_a_row_is_what_it_is_among_others():
    x, gate, up = make(300, 1040, 100)
    np.testing.assert_array_equal(gated_linear(x[101:201], gate, up, impl="native"), gated_linear(x, gate, up)[101:201])


def test_gradients_are_those_of_the_definition():
    operands = make(70, 32, 24)
    loss = lambda impl: lambda *a: (gated_linear(*a, impl=impl) ** 2).sum()  # noqa: E731
    for mine, right in zip(*(jax.grad(loss(impl), (0, 1, 2))(*operands) for impl in (None, "reference")), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4)


def test_refusals_say_why():
    x, gate, up = make(70, 32, 8)
    with unchecked(), pytest.raises(ValueError, match=r"gate and up \[o, i\]"):
        gated_linear(x, gate, up[:4])
    with pytest.raises(ValueError, match=f"takes more than {MOST_ROWS} rows"):
        gated_linear(x[:3], gate, up, impl="native")
    with pytest.raises(ValueError, match="takes float32, or bfloat16"):
        gated_linear(*(a.astype("float16") for a in (x, gate, up)), impl="native")
