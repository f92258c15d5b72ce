"""Every implementation of rows times weights against NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.linear import api, linear
from kvjax.kernels.linear.native import FEW_ROWS, MOST_ROWS
from kvjax.kernels.linear.shapes import SHAPES
from kvjax.kernels.native import has_pairs
from tests.decode_loop import unchecked

IMPLEMENTATIONS = (*api.IMPLEMENTATIONS, "native")


def make(rows, inputs, outputs, dtype="float32"):
    rng = np.random.default_rng(rows * inputs + outputs)
    return tuple(jnp.asarray(rng.normal(size=(n, inputs)), dtype) for n in (rows, outputs))


def check(impl, *shape, dtype="float32"):
    x, weight = make(*shape, dtype=dtype)
    right = np.asarray(x, np.float64) @ np.asarray(weight, np.float64).T
    np.testing.assert_allclose(linear(x, weight, dtype=jnp.float32, impl=impl), right, atol=2e-6 * max(1, np.abs(right).max()))


#: Outputs that are no multiple of a register's or of an item's; rows that fill registers, some of one, and none.
CASES = {
    "one of each": (1, 16, 1),
    "one row": (1, 48, 203),
    "three rows": (3, 64, 130),
    "two groups of rows": (FEW_ROWS, 2064, 33),
    "part of a register": (FEW_ROWS + 1, 576, 131),
    "a register and a few rows": (20, 64, 50),
    "a register and part of one": (25, 48, 7),
    "whole registers": (48, 576, 64),
    "most rows": (MOST_ROWS, 80, 59),
    "one less": (MOST_ROWS - 1, 1552, 30),
}


@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("case", CASES)
def test_matches_numpy(impl, dtype, case):
    check(impl, *CASES[case], dtype=dtype)


#: A prompt's rows: blocks and panels that are whole and not, more channels than are multiplied at a time.
MANY = {"one more": (MOST_ROWS + 1, 64, 64), "part of a block and of a panel": (200, 576, 130), "long rows": (97, 2080, 192)}


@pytest.mark.parametrize("impl", [None, *IMPLEMENTATIONS])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("case", MANY)
def test_many_rows_match_numpy(impl, dtype, case):
    if impl == "native" and dtype == "bfloat16" and not has_pairs():
        pytest.skip("this processor multiplies no pairs of bfloat16: XLA does")
    check(impl, *MANY[case], dtype=dtype)


@pytest.mark.usefixtures("native")
def test_a_row_of_many_is_what_it_is_among_others():
    x, weight = make(300, 1040, 100)
    np.testing.assert_array_equal(linear(x[101:201], weight, impl="native"), linear(x, weight, impl="native")[101:201])


@pytest.mark.slow
@pytest.mark.parametrize("impl", IMPLEMENTATIONS)
@pytest.mark.parametrize("name", SHAPES)
def test_named_shapes(impl, name):
    shape = SHAPES[name]
    check(impl, shape.rows, shape.inputs, shape.outputs)


@pytest.mark.usefixtures("native")
def test_a_row_of_a_few_is_what_it_is_alone():
    x, weight = make(FEW_ROWS, 576, 192)
    rows = [linear(x[i : i + 1], weight, impl="native") for i in range(FEW_ROWS)]
    np.testing.assert_array_equal(linear(x, weight, impl="native"), jnp.concatenate(rows))


@pytest.mark.parametrize("impl", [None, *IMPLEMENTATIONS])
def test_the_result_has_the_dtype_asked_for(impl):
    x, weight = make(2, 32, 8, dtype="bfloat16")
    assert linear(x, weight, impl=impl).dtype == jnp.bfloat16
    assert linear(x, weight, dtype=jnp.float32, impl=impl).dtype == jnp.float32


def test_gradients_of_a_single_row_flow():
    x, weight = make(1, 32, 8)
    loss = lambda impl: lambda x, weight: (linear(x, weight, impl=impl) ** 2).sum()  # noqa: E731
    for mine, right in zip(*(jax.grad(loss(impl), (0, 1))(x, weight) for impl in (None, "reference")), strict=True):
        np.testing.assert_allclose(mine, right, rtol=1e-4, atol=1e-4)


def test_refusals_say_why():
    with unchecked(), pytest.raises(ValueError, match=r"x must be \[r, i\]"):
        linear(*make(1, 32, 8)[:1], jnp.ones((8, 31)))
    with pytest.raises(ValueError, match=f"takes 1 to {MOST_ROWS} rows of float16 and weights of float16, got {MOST_ROWS + 1}"):
        linear(*make(MOST_ROWS + 1, 32, 8, dtype="float16"), impl="native")
    with pytest.raises(ValueError, match="multiple of 16"):
        linear(*make(1, 40, 8), impl="native")
