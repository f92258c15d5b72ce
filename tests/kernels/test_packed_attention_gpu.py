"""The Triton kernel of attention from packed codes with no GPU: numbers by the interpreter, ptxas' report, what is chosen."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

import kvjax  # noqa: E402
from kvjax.kernels.packed_attention import Packed, packed_attention, triton  # noqa: E402
from tests.decode_loop import copies, decode, pools  # noqa: E402
from tests.decode_loop import operands as loop_operands  # noqa: E402

from .interpreted import interpreted  # noqa: E402
from .test_packed_attention import CASES, CODES, close, make, oracle  # noqa: E402
from .test_ragged_attention import biases  # noqa: E402

#: Few programs, so that regions share them unevenly and the interpreter is quick.
FEW = triton.Config(programs=6, items=4)
ONE = {name: case for name, case in CASES.items() if case[2] == 1 and case[1] <= 16}
PAIRS = [(case, codes) for i, case in enumerate(ONE) for j, codes in enumerate(CODES) if case == "skewed" or (i + j) % 3 == 0]
KINDS = ("float16", "bfloat16")


def given(case, codes):
    """Operands as NumPy arrays, what they decode to, and the window."""
    *shape, window = ONE[case]
    operands, seen = make(*shape, CODES[codes], seed=len(case))
    return jax.tree.map(np.asarray, operands), seen, window


def rounded(dtype):
    """Queries and exact rows of 16 bits over skewed regions."""
    operands, seen = make([[300, 7], [90, 64]], 3, 1, 64, CODES["4 bits by page"], tail_dtype=dtype)
    operands[0] = operands[0].astype(dtype)
    return jax.tree.map(np.asarray, operands), seen


def biased(window):
    """Short positions, and a bias for every slot."""
    operands, seen = make([[300, 40]], 2, 1, 16, CODES["2 bits by page"])
    operands[3] = (operands[3] % 60000).astype(jnp.uint16)
    _, _, _, pos, start, length, _ = operands
    bias = biases(np.asarray(start), np.asarray(length), len(pos))
    return jax.tree.map(np.asarray, operands), seen, np.asarray(bias)


@pytest.fixture(scope="module")
def found():
    """What the interpreter gave, by case."""
    calls = {}
    for case, codes in PAIRS:
        operands, _, window = given(case, codes)
        calls[case, codes] = triton.__name__, "attention", operands, dict(window=window, config=FEW)
    for dtype in KINDS:
        calls[dtype] = triton.__name__, "attention", rounded(dtype)[0], dict(window=None, config=FEW)
    for window in (None, 50):
        operands, _, bias = biased(window)
        calls["biased", window] = triton.__name__, "attention", [*operands, bias], dict(window=window, config=FEW)
    return dict(zip(calls, interpreted(list(calls.values())), strict=True))


@pytest.mark.parametrize("case, codes", PAIRS)
def test_equals_decoding_and_attending(case, codes, found):
    operands, seen, window = given(case, codes)
    for got, want in zip(found[case, codes], oracle(operands, seen, window), strict=True):
        assert got.dtype == np.float32
        close(got, want)


@pytest.mark.parametrize("dtype", KINDS)
def test_queries_and_exact_rows_in_16_bits(dtype, found):
    operands, seen = rounded(dtype)
    out, lse = found[dtype]
    want, want_lse = oracle([operands[0].astype(np.float32), *operands[1:]], seen)
    assert out.dtype == dtype
    close(out, want, 2e-2)
    close(lse, want_lse, 2e-2)


@pytest.mark.parametrize("window", [None, 50])
def test_biases_and_short_positions(window, found):
    operands, seen, bias = biased(window)
    for got, want in zip(found["biased", window], oracle(operands, seen, window, bias), strict=True):
        close(got, want)


def side(bits, *, page=1, group=32, slots=8192, d=128, dtype="bfloat16", h=8):
    """Shapes of keys, or values, of one layer: 128 exact rows behind no sinks."""
    of, each = jax.ShapeDtypeStruct, 32 // bits
    tail, coded = of((1, h, 128, d), dtype), of((1, h), jnp.int32)
    if page > 1:
        codes = of((slots // page, page // each, d), jnp.uint32), *(of((slots // page, d), jnp.float16),) * 2
    else:
        codes = of((slots, d // each), jnp.uint32), *(of((slots, d // group), jnp.float16),) * 2
    return Packed(*codes, tail, coded, bits=bits, page=page)


def specs(bits=2, *, by="page", d=128, dtype="bfloat16", g=4, h=8, t=1):
    """Shapes of a call's operands: KIVI's codes by page, or both sides by slot."""
    of = jax.ShapeDtypeStruct
    page = 32 if by == "page" else 1
    k, v = side(bits, page=page, d=d, dtype=dtype, h=h), side(bits, d=d, dtype=dtype, h=h)
    index = of((1, h), jnp.int32)
    return of((1, h, g, t, d), dtype), k, v, of((8192,), jnp.uint16), index, index, of((1, t), jnp.int32)


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("d, dtype", [(64, "bfloat16"), (128, "bfloat16"), (128, "float16"), (256, "bfloat16"), (128, "float32")])
@pytest.mark.parametrize("bits", [2, 8, *(pytest.param(bits, marks=pytest.mark.slow) for bits in (1, 4))])
@pytest.mark.parametrize("by", ["page", "slot"])
def test_registers_and_shared_memory_suffice(by, bits, d, dtype, capability):
    attend = lambda *x: (triton.attention(*x, window=None), triton.attention(*x, jnp.zeros(8192), window=100))  # noqa: E731
    report = deviceless.assembled(attend, *specs(bits, by=by, d=d, dtype=dtype), capability=capability)
    assert sorted(kernel.name for kernel in report) == ["attend", "attend", "combine"]
    assert all(kernel.fits(capability) for kernel in report), report


def test_chooses_the_kernel_on_cuda():
    text = deviceless.compiled(jax.jit(packed_attention), *specs()).as_text()
    assert text.count('custom_call_target="triton_kernel_call"') == 2 and " while(" not in text
    question = deviceless.compiled(jax.jit(packed_attention), *specs(t=3)).as_text()
    assert "triton_kernel_call" not in question


@pytest.mark.slow
def test_decode_reads_codes_by_the_kernel_and_updates_them_in_place(lm, pre):
    """KIVI's decode loop, compiled for an H200: codes of 2**18 slots go in, come out, and are never copied."""
    slots, policy = 1 << 18, kvjax.methods.kivi(value_group=16, residual=64)
    args = loop_operands(lm, pre, policy, slots)
    program = deviceless.compiled(decode._loop, *args, width=64, keep_logits=False)
    memory, pool = program.memory_analysis(), sum(x.nbytes for x in pools(args[2]))
    assert "triton_kernel_call" in program.as_text() and not copies(program, slots)
    assert memory.alias_size_in_bytes >= pool and memory.temp_size_in_bytes < pool // 16


@pytest.mark.parametrize(
    "operands, reason",
    [
        (specs(t=2), "one query a row"),
        (specs(g=17), "16 query heads"),
        (specs(dtype="float64"), "takes float32"),
        (specs(dtype="float32", d=256), "registers"),
        ((specs()[0], side(4, page=4), *specs()[2:]), "multiples of 8 for 4 bits; got 4"),
        ((specs()[0], side(2, group=8), *specs()[2:]), "multiples of 16 for 2 bits; got 8"),
    ],
)
def test_refuses_by_name(operands, reason):
    assert triton.refuses(*specs()) is None and reason in triton.refuses(*operands)
