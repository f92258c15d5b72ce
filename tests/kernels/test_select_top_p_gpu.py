"""The Triton kernel of mass selection with no GPU: numbers by the interpreter, and ptxas' report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.select_top_p import select_top_p, shapes, triton  # noqa: E402

from .interpreted import interpreted  # noqa: E402
from .test_select_top_p import NOTHING, TIES, check, check_nothing, check_ties, make  # noqa: E402

#: Rows shorter than a step, of several steps, not multiples of one.
CASES = {(n, spread): make(2, 2, n, spread, seed=n).at[..., 0].set(0.5) for n in (1, 5, 300, 1100) for spread in (0.1, 5.0)}
TAUS = (0.05, 0.9, 0.999)


def ask(calls: dict) -> dict:
    """(weights, lse) by key, from scores and tau by key."""
    found = interpreted([(triton.__name__, "select", [np.asarray(s), np.float32(tau)], {}) for s, tau in calls.values()])
    return dict(zip(calls, found, strict=True))


@pytest.fixture(scope="module")
def found():
    """What the interpreter gave, by case and tau."""
    small = {("ties", tau): (TIES, tau) for tau in (0.5, 0.85, 1.0)} | {"nothing": (NOTHING, 0.9)}
    return ask({(*case, tau): (scores, tau) for case, scores in CASES.items() for tau in TAUS} | small)


@pytest.mark.parametrize("tau", TAUS)
@pytest.mark.parametrize("case", CASES)
def test_is_the_sorted_rule(case, tau, found):
    check(CASES[case], tau, found[*case, tau])


@pytest.mark.slow
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_named_shapes(name):
    shape = shapes.SHAPES[name]
    scores = make(1, shape.g, shape.n, shape.spread)  # one KV head: a row is a program, whatever the number of rows
    check(scores, 0.9, ask({name: (scores, 0.9)})[name])


def test_ties_by_lower_index_and_all_of_the_mass(found):
    check_ties(lambda tau: found["ties", tau][0])


def test_a_query_that_sees_nothing(found):
    check_nothing(*found["nothing"])


def specs(shape):
    """Shapes of a call's operands."""
    return jax.ShapeDtypeStruct((1, shape.h, shape.g, 1, shape.n), jnp.float32), jax.ShapeDtypeStruct((), jnp.float32)


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_registers_and_shared_memory_suffice(name, capability):
    select = lambda *given: triton.select(*given)  # noqa: E731
    (report,) = deviceless.assembled(select, *specs(shapes.SHAPES[name]), capability=capability)
    assert report.fits(capability), report


def test_chooses_the_kernel_on_cuda():
    select = jax.jit(lambda scores, tau: select_top_p(scores, tau)[0])
    assert "triton_kernel_call" in deviceless.compiled(select, *specs(shapes.SHAPES["llama-3-8b, 32k"])).as_text()
