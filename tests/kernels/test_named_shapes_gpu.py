"""The GPU kernels over every named shape by Triton's and Pallas' interpreters, against float64."""

import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.codebook_scores import shapes as coded  # noqa: E402
from kvjax.kernels.codebook_scores import triton as code_kernel  # noqa: E402
from kvjax.kernels.gather_attention import shapes as listed  # noqa: E402
from kvjax.kernels.gather_attention import triton as list_kernel  # noqa: E402
from kvjax.kernels.ragged_attention import mosaic  # noqa: E402
from kvjax.kernels.ragged_attention import shapes as ragged  # noqa: E402
from kvjax.kernels.ragged_attention import triton as ragged_kernel  # noqa: E402

from . import named  # noqa: E402
from .interpreted import interpreted  # noqa: E402
from .test_ragged_attention import close  # noqa: E402

pytestmark = pytest.mark.slow
#: Fewer programs than a card has, so that regions share them unevenly; the interpreter's time follows the slots.
FEW, MOST, DTYPES = ragged_kernel.Config(programs=16, items=4), 1536, ("float32", "float16", "bfloat16")
ONE_QUERY = [name for name, shape in ragged.ALL.items() if shape.t == 1]


@pytest.fixture(scope="module")
def found():
    """(what the interpreter gave, what is right) by operation, shape and dtype."""
    calls, right = {}, {}

    def ask(key, module, method, operands, wanted, **how):
        calls[key], right[key] = (module.__name__, method, list(map(np.asarray, operands)), how), wanted

    for dtype in DTYPES:
        for name in ONE_QUERY:
            case = named.regions(ragged.ALL[name], dtype, MOST)
            ask(("ragged", name, dtype), ragged_kernel, "attention", *case, window=None, config=FEW)
        for name, shape in listed.SHAPES.items():
            ask(("gather", name, dtype), list_kernel, "attention", *named.lists(shape, dtype, MOST), config=FEW)
        for name, shape in coded.SHAPES.items():
            operands, cap, scores = named.coded(shape, dtype, MOST)
            ask(("codes", name, dtype), code_kernel, "scores", operands, (scores,), cap=cap, window=None)
    results = dict(zip(calls, interpreted(list(calls.values())), strict=True))
    return {key: (got if isinstance(got, tuple) else (got,), right[key]) for key, got in results.items()}


KEYS = [("ragged", name) for name in ONE_QUERY] + [("gather", name) for name in listed.SHAPES]
KEYS += [("codes", name) for name in coded.SHAPES]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("op", "name"), KEYS)
def test_triton(op, name, dtype, found):
    for got, wanted in zip(*found[op, name, dtype], strict=True):
        close(got, wanted, dtype)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("name", ONE_QUERY)
def test_mosaic(name, dtype):
    operands, wanted = named.regions(ragged.ALL[name], dtype, 1024)
    config = mosaic.Config(programs=5, stages=2, interpret=True)
    for got, right in zip(mosaic.attention(*operands, window=None, config=config), wanted, strict=True):
        close(got, right, dtype)


@pytest.mark.parametrize("name", sorted(set(ragged.ALL) - set(ONE_QUERY)))
def test_several_queries_a_row_are_refused_by_name(name):
    operands, _ = named.regions(ragged.ALL[name], "bfloat16", 512)
    for kernel in (ragged_kernel, mosaic):
        assert "one query a row" in kernel.refuses(*operands)
