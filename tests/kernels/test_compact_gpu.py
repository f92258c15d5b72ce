"""The Triton kernels of moving slots with no GPU: the interpreter's rows, ptxas' report, and pools written in place."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.compact import Moves, compact, move_regions, pick, plan, rewrite, shapes, triton, xla  # noqa: E402
from kvjax.types import SLACK  # noqa: E402

from .interpreted import interpreted  # noqa: E402
from .test_compact import CASES, held, make, picked  # noqa: E402

#: Fewer programs and rows of a step than on a card, so that regions take several steps of several programs.
FEW = triton.Config(programs=9, rows=16)
METHODS = dict(compact=compact, rewrite=rewrite, pick=pick, move_regions=move_regions)


def operands(name: str) -> dict:
    """Operands by method for one case, the pools first."""
    pools, start, keep, valid = make(CASES[name])
    moves, length = plan(keep, valid), valid.sum(-1).astype(jnp.int32)
    slots = start[..., None] + moves.targets
    values = jax.random.normal(jax.random.key(1), (*keep.shape, pools["k"].shape[1]))
    two = dict(k=pools["k"], v=pools["v"].astype(jnp.float16))
    rows = dict(k=values, v=jax.random.normal(jax.random.key(2), (*keep.shape, pools["v"].shape[1])))
    new = (jnp.cumsum(length.reshape(-1) + 9) - length.reshape(-1)).reshape(start.shape)
    return dict(
        compact=(pools, start, moves),
        rewrite=(two, rows, slots, moves.count),
        pick=(two, rows, moves.sources, new, moves.count),
        move_regions=(pools, start, new, length),
    )


def static(method: str, given: tuple) -> dict:
    return dict(slots=int(given[3].sum() + 9 * given[3].size) + SLACK) if method == "move_regions" else {}


def seen(method: str, given: tuple, pools: dict) -> dict:
    """What of the pools is specified after a call."""
    if method == "rewrite":
        return pools
    start = given[3] if method == "pick" else given[2] if method == "move_regions" else given[1]
    count = dict(compact=lambda: given[2].length, pick=lambda: given[4], move_regions=lambda: given[3])[method]()
    return held(pools, np.asarray(start), np.asarray(count))


@pytest.fixture(scope="module")
def found():
    """(operands, what the interpreter gave) by case and method."""
    asked = {(case, method): given for case in CASES for method, given in operands(case).items()}
    calls = [
        (triton.__name__, method, jax.tree.map(np.asarray, given), dict(config=FEW, **static(method, given)))
        for (_, method), given in asked.items()
    ]
    return {key: (asked[key], got) for key, got in zip(asked, interpreted(calls), strict=True)}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("case", CASES)
def test_moves_what_xla_moves(case, method, found):
    given, got = found[case, method]
    want = getattr(xla, method)(*given, **static(method, given))
    jax.tree.map(np.testing.assert_array_equal, seen(method, given, got), seen(method, given, want))


def test_chosen_rows_of_many_steps_are_cast_and_packed():
    given, want = picked()
    (got,) = interpreted([(triton.__name__, "pick", jax.tree.map(np.asarray, given), dict(config=FEW))])
    jax.tree.map(np.testing.assert_array_equal, held(got, *map(np.asarray, given[-2:])), want)


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_registers_and_shared_memory_suffice(name, capability):
    for method, given in operands(name).items():
        run = partial(getattr(triton, method), **static(method, given))
        reports = deviceless.assembled(run, *given, capability=capability)
        assert reports and all(report.fits(capability) for report in reports), reports


@pytest.mark.parametrize("method", [name for name in METHODS if name != "move_regions"])
def test_a_donated_pool_is_written_in_place(method):
    given = operands("llama-3-8b, skewed, one row due")[method]
    program = deviceless.compiled(jax.jit(METHODS[method], donate_argnums=0), *given)
    memory, pool = program.memory_analysis(), sum(x.nbytes for x in given[0].values())
    assert "triton_kernel_call" in program.as_text() and " while(" not in program.as_text()
    assert memory.alias_size_in_bytes == pool and memory.temp_size_in_bytes < pool // 16


def test_nothing_to_move_is_refused_by_name():
    none = jnp.zeros((1, 2, 0), jnp.int32)
    moves = Moves(jnp.zeros((1, 2), jnp.int32), none, none, jnp.zeros((1, 2), jnp.int32))
    assert "not empty" in triton.refuses(jnp.zeros((8, 4)), jnp.zeros((1, 2), jnp.int32), moves)
