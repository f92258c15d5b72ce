"""The Triton kernel of scores from codes with no GPU: numbers by the interpreter, and ptxas' report."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.codebook_scores import codebook_scores, shapes, triton  # noqa: E402

from .interpreted import interpreted  # noqa: E402
from .test_codebook_scores import CASES, operands, oracle  # noqa: E402

#: One query; in a window too; groups that are no power of two; d = 80 in groups of 4.
ONE = {name: case for name, case in CASES.items() if case[2] == 1} | {
    "window": ([[40, 700]], 2, 1, 8, 4, 16, False, 33),
    "six groups, shared": ([[40, 100]], 3, 1, 48, 6, 16, True, None),
    "groups of three": ([[40, 100]], 3, 1, 24, 8, 16, False, None),
    "head dimension 80": ([[40, 100]], 16, 1, 80, 20, 300, False, None),
}


def cap_of(case):
    """Slots of the widest region, less a few."""
    return max(1, int(np.max(case[0])) - 3)


@pytest.fixture(scope="module")
def found():
    """What the interpreter gave, by case."""
    calls = []
    for *shape, window in ONE.values():
        given = list(map(np.asarray, operands(*shape)))
        calls.append((triton.__name__, "scores", given, dict(cap=cap_of(shape), window=window)))
    return dict(zip(ONE, interpreted(calls), strict=True))


@pytest.mark.parametrize("case", ONE)
def test_matches_the_transcription(case, found):
    *shape, window = ONE[case]
    want = oracle(*map(np.asarray, operands(*shape)), window=window, cap=cap_of(shape))
    assert found[case].dtype == np.float32
    np.testing.assert_allclose(found[case], want, atol=5e-6)


def specs(shape, dtype):
    """Shapes of a call's operands; the pool has the slots of one layer."""
    of, index = jax.ShapeDtypeStruct, jax.ShapeDtypeStruct((1, shape.h), jnp.int32)
    codes = of((shape.h * shape.slots, shape.m), jnp.uint8 if shape.c <= 256 else jnp.uint16)
    book = of((shape.h, shape.m, shape.c, shape.d // shape.m), jnp.float16)
    pos = of(codes.shape[:1], jnp.uint16)
    return of((1, shape.h, shape.g, 1, shape.d), dtype), codes, book, pos, index, index, of((1, 1), jnp.int32)


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
@pytest.mark.parametrize("name", shapes.SHAPES)
def test_registers_and_shared_memory_suffice(name, dtype, capability):
    shape = shapes.SHAPES[name]
    score = lambda *given: triton.scores(*given, cap=shape.slots, window=None)  # noqa: E731
    (report,) = deviceless.assembled(score, *specs(shape, dtype), capability=capability)
    assert report.fits(capability), report


def test_chooses_the_kernel_on_cuda():
    shape = shapes.SHAPES["llama-3-8b, 32k, g = 32"]
    score = jax.jit(lambda *given: codebook_scores(*given, cap=shape.slots))
    assert "triton_kernel_call" in deviceless.compiled(score, *specs(shape, "bfloat16")).as_text()


def test_refuses_by_name():
    q, codes, book, *where = specs(shapes.SHAPES["smollm2-135m, 8k, 4 bits a channel"], "bfloat16")
    wide = jax.ShapeDtypeStruct((*q.shape[:3], 2, q.shape[4]), q.dtype)
    assert triton.refuses(q, codes, book, *where) is None
    assert "one query a row" in triton.refuses(wide, codes, book, *where)
    assert "uint8 or uint16" in triton.refuses(q, jax.ShapeDtypeStruct(codes.shape, jnp.int32), book, *where)
    assert "float64" in triton.refuses(jax.ShapeDtypeStruct(q.shape, "float64"), codes, book, *where)
