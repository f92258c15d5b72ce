"""The Triton kernels of attention with no GPU: numbers by the interpreter, ptxas' report, a decode step compiled for an H200."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from . import deviceless

deviceless.require()

from kvjax.kernels.gather_attention import gather_attention  # noqa: E402
from kvjax.kernels.gather_attention import triton as gather  # noqa: E402
from kvjax.kernels.ragged_attention import attention_with_weights, probabilities, ragged_attention, shapes, triton  # noqa: E402
from tests.conftest import policy_of  # noqa: E402
from tests.decode_loop import copies, decode, operands, pools  # noqa: E402

from . import oracle  # noqa: E402
from . import test_gather_attention as listed  # noqa: E402
from .interpreted import interpreted  # noqa: E402
from .test_ragged_attention import biases, close, make  # noqa: E402

#: Few programs, so that regions share them unevenly and the interpreter is quick; one case has the library's own number.
FEW = triton.Config(programs=6, items=4)
#: lengths [b][h], g, d, window, dtype
CASES = {
    "one slot": ([[1]], 1, 8, None, "float32"),
    "empty beside full": ([[0, 5, 600]], 2, 8, None, "float32"),
    "all empty": ([[0, 0]], 2, 8, None, "float32"),
    "skewed": ([[3, 1300], [257, 0], [255, 256]], 3, 16, None, "float32"),
    "skewed, bfloat16": ([[3, 1300], [257, 0], [255, 256]], 3, 16, None, "bfloat16"),
    "skewed, float16": ([[3, 1300], [257, 0], [255, 256]], 3, 16, None, "float16"),
    "the library's own tiling": ([[5, 300]], 2, 8, None, "float32"),
    "window": ([[40, 700]], 2, 8, 33, "float32"),
    "group of 16": ([[130, 17]], 16, 64, None, "float32"),
    "head dimension 80": ([[130, 17]], 4, 80, None, "float32"),
    "head dimension 96, bfloat16": ([[130, 17]], 7, 96, None, "bfloat16"),
    "head dimension 256": ([[70, 17]], 2, 256, None, "float32"),
    "five regions": ([[70, 17, 9, 300, 1]], 2, 32, None, "float32"),
}
LISTS = {
    "empty beside full": ([[0, 5, 600]], 600, 700, 2, 8, "float32"),
    "skewed, bfloat16": ([[3, 300], [129, 0], [127, 128]], 300, 400, 3, 16, "bfloat16"),
    "head dimension 80": ([[130, 17]], 130, 150, 4, 80, "float32"),
}


def operands_of(case):
    lengths, g, d, _, dtype = CASES[case]
    return list(map(np.asarray, make(lengths, g, 1, d, dtype)))


def call_of(case, name):
    """One call of the interpreter."""
    *_, window, _ = CASES[case]
    q, k, v, *where = operands_of(case)
    config = triton.Config() if "own" in case else FEW
    if name == "attention":
        return triton.__name__, name, [q, k, v, *where], dict(window=window, config=config)
    return triton.__name__, name, [q, k, *where], dict(window=window, config=config, cap=cap_of(case))


#: Cases whose probabilities are looked at.
WATCHED = ("empty beside full", "skewed", "window")


#: Cases that are asked for with biases too.
BIASED = ("skewed", "skewed, bfloat16", "window")


def biased_of(case, name):
    """`call_of` with a bias for every slot."""
    module, _, operands, static = call_of(case, name)
    start, length = operands[-3:-1]
    return module, name, [*operands, biases(start, length, len(operands[1]))], static


def watched_of(case):
    """A call of the interpreter about the first two thirds of the regions, the last heads first."""
    *_, window, _ = CASES[case]
    operands = operands_of(case)
    heads = tuple(reversed(range(operands[0].shape[1])))
    static = dict(heads=heads, cap=cap_of(case), window=window)
    return triton.__name__, "attention_with_weights", [*operands, operands[5][:, heads] * 2 // 3], static


def cap_of(case):
    """Slots of the widest region, less a few."""
    return max(1, int(np.max(CASES[case][0])) - 7)


@pytest.fixture(scope="module")
def found():
    """What the interpreter gave, by operation and case."""
    calls = {(name, case): call_of(case, name) for name in ("attention", "scores") for case in CASES}
    calls |= {("watched", case): watched_of(case) for case in WATCHED}
    calls |= {("biased " + name, case): biased_of(case, name) for name in ("attention", "scores") for case in BIASED}
    for case, (*shape, dtype) in LISTS.items():
        calls["lists", case] = gather.__name__, "attention", list(map(np.asarray, listed.make(*shape, dtype))), dict(config=FEW)
    for case in ("skewed, bfloat16", "head dimension 80"):
        module, name, operands, static = calls["lists", case]
        calls["biased lists", case] = module, name, [*operands, listed.biases(len(operands[1]))], static
    for lengths in PLANS:
        calls["plan", lengths] = "tests.kernels.planned", "planned", [np.array(lengths, np.int32)], dict(block=64, programs=256)
    return dict(zip(calls, interpreted(list(calls.values())), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_attention_matches_float64(case, found):
    *_, window, dtype = CASES[case]
    out, lse, weights = oracle.ragged(*operands_of(case), window=window, cap=cap_of(case))
    got, got_lse = found["attention", case]
    assert got.dtype == dtype and got_lse.dtype == np.float32
    close(got, out, dtype)
    close(got_lse, lse, dtype)
    close(probabilities(jnp.asarray(found["scores", case]), jnp.asarray(got_lse)), weights, dtype)


@pytest.mark.parametrize("case", BIASED)
def test_a_bias_is_added_to_its_slots_scores(case, found):
    *_, window, dtype = CASES[case]
    bias = biased_of(case, "attention")[2][-1]
    out, lse, weights = oracle.ragged(*operands_of(case), window=window, cap=cap_of(case), bias=bias)
    got, got_lse = found["biased attention", case]
    close(got, out, dtype)
    close(got_lse, lse, dtype)
    close(probabilities(jnp.asarray(found["biased scores", case]), jnp.asarray(got_lse)), weights, dtype)


@pytest.mark.parametrize("case", WATCHED)
def test_watched_attention_matches_float64(case, found):
    *_, (q, k, v, pos, start, _, q_pos, upto), static = watched_of(case)
    some = list(static.pop("heads"))
    out, lse, got = found["watched", case]
    want = oracle.ragged(*operands_of(case), window=static["window"])
    close(out, want[0], "float32")
    close(lse, want[1], "float32")
    close(got, oracle.ragged(q[:, some], k, v, pos, start[:, some], upto, q_pos, **static)[2], "float32")


@pytest.mark.parametrize("case", LISTS)
def test_attention_over_lists_matches_float64(case, found):
    *shape, dtype = LISTS[case]
    operands = listed.make(*shape, dtype)
    listed.check(found["lists", case], operands, dtype)
    if ("biased lists", case) in found:
        listed.check(found["biased lists", case], (*operands, listed.biases(len(operands[1]))), dtype)


#: Slots of the lists of a call.
PLANS = (
    (65536, 2048, 2048, 2048, 2048, 2048, 2048, 2048),
    (0, 0, 0),
    (1, 0, 64, 65),
    tuple(64 * i for i in range(300)),
)


@pytest.mark.parametrize("lengths", PLANS)
def test_programs_are_shared_out_by_length(lengths, found):
    items, ends = found["plan", lengths]
    blocks = -(-np.array(lengths) // 64)
    assert np.array_equal(ends, np.cumsum(items)) and ends[-1] <= 256 + len(lengths)
    each = max(1, -(-blocks.sum() // 256))
    assert np.array_equal(items, -(-blocks // each))
    assert ends[-1] >= min(blocks.sum(), 128)  # no list keeps the others' programs waiting


def specs(g=4, d=128, dtype="bfloat16", pool=None, h=8):
    """Shapes of a call's operands."""
    of = jax.ShapeDtypeStruct
    kv, index = of((8192, d), pool or dtype), of((1, h), jnp.int32)
    return of((1, h, g, 1, d), dtype), kv, kv, of((8192,), jnp.uint16), index, index, of((1, 1), jnp.int32)


#: d, dtype of the queries, of the pool
KINDS = [(d, kind, kind) for d in (64, 80, 96, 128, 256) for kind in ("bfloat16", "float32")]
KINDS += [(128, "float16", "float16"), (128, "float32", "bfloat16"), (128, "bfloat16", "float16")]


@pytest.mark.parametrize("capability", deviceless.SHARED)
@pytest.mark.parametrize("d, dtype, pool", KINDS)
def test_registers_and_shared_memory_suffice(d, dtype, pool, capability):
    q, k, v, *where = specs(d=d, dtype=dtype, pool=pool)
    lists = jax.ShapeDtypeStruct((1, 8, 512), jnp.int32)

    def every(q, k, v, pos, start, length, q_pos, lists):
        full = triton.attention(q, k, v, pos, start, length, q_pos, window=None)
        windowed = triton.attention(q, k, v, pos, start, length, q_pos, window=100)
        biased = triton.attention(q, k, v, pos, start, length, q_pos, jnp.zeros(len(k)), window=None)
        scores = triton.scores(q, k, pos, start, length, q_pos, cap=512, window=None)
        return full, windowed, biased, scores, gather.attention(q, k, v, lists, length)

    report = deviceless.assembled(every, q, k, v, *where, lists, capability=capability)
    assert sorted(kernel.name for kernel in report) == ["attend"] * 4 + ["combine", "score"]
    for kernel in report:
        assert kernel.fits(capability), report
    if d <= 128 and "float32" not in (dtype, pool):  # the common kernels: two programs a multiprocessor at least
        assert all(2 * kernel.shared <= deviceless.SHARED[capability] for kernel in report), report


@pytest.mark.parametrize(
    "changed, reason",
    [
        (dict(g=17), "16 query heads"),
        (dict(d=512), "dimension up to 256"),
        (dict(d=256, dtype="float32", pool="bfloat16"), "registers"),
        (dict(dtype="float64"), "takes float32"),
        (dict(pool="uint8"), "uint8"),
    ],
)
def test_refuses_by_name(changed, reason):
    assert reason in triton.refuses(*specs(**changed)) and triton.refuses(*specs()) is None


def test_refuses_several_queries_and_two_pools():
    q, k, v, *where = specs()
    wide = jax.ShapeDtypeStruct((1, 8, 4, 2, 128), q.dtype)
    assert "one query a row" in triton.refuses(wide, k, v, *where)
    assert "one dtype" in triton.refuses(q, k, jax.ShapeDtypeStruct(v.shape, jnp.float32), *where)


@pytest.mark.parametrize("name", ["llama skewed", "smollm2 question"])
def test_chooses_by_platform(name):
    shape = shapes.ALL[name]
    b, h = np.shape(shape.lengths)
    q, *rest, index, _, _ = specs(g=shape.g, d=shape.d, h=h)
    q = jax.ShapeDtypeStruct((b, h, shape.g, shape.t, shape.d), q.dtype)
    operands = q, *rest, index, index, jax.ShapeDtypeStruct((b, shape.t), jnp.int32)
    assert ("triton_kernel_call" in deviceless.compiled(jax.jit(ragged_attention), *operands).as_text()) == (shape.t == 1)


def test_watching_is_attention_by_the_kernel_too():
    *operands, length, q_pos = specs()
    watch = jax.jit(lambda *x: attention_with_weights(*x[:-1], heads=(1, 5), upto=x[-1], cap=512))
    text = deviceless.compiled(watch, *operands, length, q_pos, jax.ShapeDtypeStruct((1, 2), jnp.int32)).as_text()
    assert len(re.findall('custom_call_target="triton_kernel_call"', text)) == 3 and " while(" not in text


@pytest.mark.parametrize("d", [64, 128])
def test_mosaic_compiles_for_hopper(d):
    attend = jax.jit(lambda *operands: ragged_attention(*operands, impl="mosaic"))
    text = deviceless.compiled(attend, *specs(d=d)).as_text()
    assert "mosaic_gpu" in text and " while(" not in text  # a loop outside the kernel would be one of launches


def test_derivatives_are_those_of_xla():
    q, k, v, *_ = specs(h=2, d=16, dtype="float32")
    lists, count = jax.ShapeDtypeStruct((1, 2, 64), jnp.int32), jax.ShapeDtypeStruct((1, 2), jnp.int32)

    def moved(q, k, v, lists, count):
        return jax.jvp(lambda q: gather_attention(q, k, v, lists, count), (q,), (q,))

    text = deviceless.compiled(jax.jit(moved), q, k, v, lists, count).as_text()
    assert "triton_kernel_call" not in text and "while" in text


#: Methods that evict by what they read, by positions alone, with merging, and one that retrieves.
OTHERS = ("h2o", "tova", "streaming_llm", "d2o", "quest")


@pytest.mark.parametrize("name", ["snapkv", *(pytest.param(name, marks=pytest.mark.slow) for name in OTHERS)])
def test_decode_updates_the_pool_in_place(name, lm, pre):
    """The whole decode loop, compiled for an H200: a pool of 2**18 slots goes in, comes out, and is never copied."""
    slots = 1 << 18
    args = operands(lm, pre, policy_of(name), slots)
    program = deviceless.compiled(decode._loop, *args, width=64, keep_logits=False)
    memory, pool = program.memory_analysis(), sum(x.nbytes for x in pools(args[2]))
    assert pool >= 2 * slots * lm.decoder.head_dim * 4 and memory.alias_size_in_bytes >= pool
    assert memory.temp_size_in_bytes < slots  # not a byte a slot
    assert "triton_kernel_call" in program.as_text() and not copies(program, slots)
