"""The Triton kernel of selection by rank with no GPU: the interpreter's masks, and ptxas' report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.select_top import select_top, shapes, triton  # noqa: E402

from .interpreted import interpreted  # noqa: E402
from .test_select_top import EXTREMES, expected, make  # noqa: E402

#: Rows shorter than a step, of several steps, not multiples of one; few and many that are equal.
CASES = {(n, kinds): make(7, n, seed=n, kinds=kinds) for n in (1, 5, 300, 1100, 2500) for kinds in (None, 1, 7)}


def asked(n: int) -> np.ndarray:
    """How many are wanted of each of seven rows."""
    return np.array([-1, 0, 1, n // 3, n - 1, n, n + 5])


def ask(calls: dict) -> dict:
    """Masks by key, from keys and k by key."""
    found = interpreted([(triton.__name__, "select", [rank, k.astype(np.int32)], {}) for rank, k in calls.values()])
    return dict(zip(calls, found, strict=True))


@pytest.fixture(scope="module")
def found():
    """What the interpreter gave, by case."""
    return ask({case: (rank, asked(rank.shape[1])) for case, rank in CASES.items()} | {"extreme": (EXTREMES, np.arange(9))})


@pytest.mark.parametrize("case", CASES)
def test_is_a_sort(case, found):
    rank = CASES[case]
    np.testing.assert_array_equal(found[case], expected(rank, asked(rank.shape[1])))


def test_extreme_keys(found):
    np.testing.assert_array_equal(found["extreme"], expected(EXTREMES, np.arange(9)))


@pytest.mark.slow
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_named_shapes(name):
    shape = shapes.SHAPES[name]
    rank, k = make(2, shape.n), np.full(2, shape.k)  # two rows: each is a program, whatever their number
    np.testing.assert_array_equal(ask({name: (rank, k)})[name], expected(rank, k))


def specs(shape):
    """Shapes of a call's operands."""
    return jax.ShapeDtypeStruct((shape.rows, shape.n), jnp.uint32), jax.ShapeDtypeStruct((shape.rows,), jnp.int32)


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_registers_and_shared_memory_suffice(name, capability):
    select = lambda *given: triton.select(*given)  # noqa: E731
    (report,) = deviceless.assembled(select, *specs(shapes.SHAPES[name]), capability=capability)
    assert report.fits(capability), report


def test_chooses_the_kernel_on_cuda():
    run = jax.jit(lambda rank, k: select_top(rank, k))
    compiled = deviceless.compiled(run, *specs(shapes.SHAPES["smollm2-135m, a prompt of 8k"]))
    assert "triton_kernel_call" in compiled.as_text()
