"""The C++ kernels: head dimensions, groups and dtypes of real models; threads, derivatives, and machines that cannot build them."""

import platform
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.codebook_scores import native as codes
from kvjax.kernels.native import library
from kvjax.kernels.ragged_attention import api, attention_with_weights, native, ragged_attention, ragged_scores
from kvjax.kernels.ragged_attention.shapes import SMOLLM2_BATCH

from . import oracle
from .test_codebook_scores import operands as coded
from .test_ragged_attention import check, close, make

pytestmark = pytest.mark.usefixtures("native")


@pytest.mark.slow
@pytest.mark.skipif(platform.machine() != "x86_64", reason="builds for a processor of another kind")
def test_a_processor_with_less_passes_the_same_tests():
    """What registers and instructions there are chooses between ways to compute, and each machine sees one of them."""
    files = [f"tests/kernels/test_{name}.py" for name in ("packed_attention", "gather_attention", "list_top", "linear")]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "tests.kernels.for_avx2", "-p", "no:cacheprovider", *files]
    done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parents[2])
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("d, g", [(64, 3), (64, 7), (80, 1), (96, 2), (128, 4), (128, 16), (256, 5)])
def test_dimensions_and_groups_of_real_models(d, g, dtype):
    check("native", make([[300, 7], [0, 513]], g, 1, d, dtype), dtype, None, 513)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_pool_and_queries_may_differ_in_dtype(dtype):
    q, k, v, *where = make([[300, 7]], 2, 1, 16, dtype)
    other = jnp.float32 if dtype == "bfloat16" else jnp.bfloat16
    got, _ = ragged_attention(q.astype(other), k, v, *where, impl="native")
    want, _ = ragged_attention(q.astype(other), k, v, *where, impl="reference")
    assert got.dtype == other
    np.testing.assert_allclose(np.asarray(got, np.float32), np.asarray(want, np.float32), rtol=2e-2, atol=1e-3)


def test_half_precision_keeps_subnormals_and_infinities():
    numbers = jnp.array([6e-8, -3e-6, 5e-5, 65504.0, jnp.inf, -0.0, 1.0, -2.5] * 2, jnp.float16)
    k = jnp.zeros((264, 16), jnp.float16).at[0].set(1)
    v = jnp.zeros((264, 16), jnp.float16).at[0].set(numbers)
    one = jnp.zeros((1, 1), jnp.int32)
    q = jnp.zeros((1, 1, 1, 1, 16), jnp.float32)
    out, _ = ragged_attention(q, k, v, jnp.zeros(264, jnp.int32), one, one + 1, one, impl="native")
    np.testing.assert_array_equal(out[0, 0, 0, 0], numbers.astype(jnp.float32))


@pytest.mark.parametrize("n", [1, 2, 3])
def test_bfloat16_keeps_infinities_in_the_last_slot(n):
    q, k, v = (jnp.zeros(shape, jnp.bfloat16) for shape in ((1, 1, 1, 1, 64), (264, 64), (264, 64)))
    one = jnp.zeros((1, 1), jnp.int32)
    out, _ = ragged_attention(q, k, v.at[n - 1].set(jnp.inf), jnp.zeros(264, jnp.int32), one, one + n, one, impl="native")
    np.testing.assert_array_equal(out.astype(jnp.float32), jnp.inf)


@pytest.mark.parametrize("t", [1, 3])
def test_a_region_is_the_same_bit_for_bit_whatever_the_others_are(t):
    q, k, v, pos, start, length, q_pos = make([[700, 64, 2000, 0, 1300, 5, 520, 90]], 2, t, 16, "float32", seed=4)
    out, lse = ragged_attention(q, k, v, pos, start, length, q_pos, impl="native")
    for heads in ([2], [7, 4, 2, 0], [3, 5]):
        part, part_lse = ragged_attention(
            q[:, heads], k, v, pos, start[:, heads], length[:, heads], q_pos, impl="native"
        )
        np.testing.assert_array_equal(part, out[:, heads])
        np.testing.assert_array_equal(part_lse, lse[:, heads])


def test_many_calls_at_once_on_one_pool_of_threads():
    """Independent calls of one program wait for items, never for threads: this ends."""
    shape = SMOLLM2_BATCH
    operands = make(shape.lengths, shape.g, shape.t, shape.d, "float32")
    want = ragged_attention(*operands, impl="native")
    run = jax.jit(lambda q, *rest: [ragged_attention(q + 0 * i, *rest, impl="native") for i in range(16)])
    for found in [run(*operands) for _ in range(8)][-1]:
        np.testing.assert_array_equal(found[0], want[0])


def test_calls_of_several_threads_share_helpers_that_come_and_go():
    """A helper goes to whoever calls first, waits for the next call, and leaves where none comes: no item is lost or run twice."""
    cases = [make([[700 + 300 * i, 64, 5]], 3, 1, 64, "float32", seed=i) for i in range(4)]
    run = jax.jit(lambda *operands: ragged_attention(*operands, impl="native")[0])
    want = [np.asarray(run(*case)) for case in cases]

    def often(i):
        for turn in range(60):
            np.testing.assert_array_equal(run(*cases[i]), want[i])
            time.sleep(1e-4 * (turn % 3))

    with ThreadPoolExecutor(len(cases)) as threads:
        list(threads.map(often, range(len(cases))))


def test_positions_may_be_16_bits():
    q, k, v, pos, *where = make([[300, 40]], 2, 3, 16, "float32")
    for window in (None, 50):
        wide, _ = ragged_attention(q, k, v, pos % 60000, *where, window=window, impl="native")
        short, _ = ragged_attention(q, k, v, (pos % 60000).astype(jnp.uint16), *where, window=window, impl="native")
        np.testing.assert_array_equal(wide, short)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("d, g", [(64, 3), (80, 1), (128, 16)])
def test_watched_attention_of_real_models(d, g, dtype):
    q, k, v, pos, start, length, q_pos = operands = make([[300, 7], [0, 513]], g, 1, d, dtype)
    out, lse, got = attention_with_weights(*operands, heads=(0, 1), upto=length, cap=513, impl="native")
    want = oracle.ragged(*map(np.asarray, operands), cap=513)
    for a, b in zip((out, lse, got), want, strict=True):
        close(a, b, dtype)


def test_watching_one_head_is_watching_all_of_them():
    operands = make([[700, 64, 2000, 0]], 3, 1, 16, "float32", seed=4)
    how, upto = dict(cap=2000, impl="native"), operands[5] - operands[5] // 3
    _, _, every = attention_with_weights(*operands, heads=(0, 1, 2, 3), upto=upto, **how)
    for head in range(4):
        _, _, got = attention_with_weights(*operands, heads=(head,), upto=upto[:, [head]], **how)
        np.testing.assert_array_equal(got[:, 0], every[:, head])


@pytest.mark.parametrize("start, length", [(-8, 4), (0, 10**6), (0, -1), (2**31 - 8, 8)])
def test_a_region_outside_the_pool_is_an_error_and_not_a_crash(start, length):
    q, k, v, pos, *_, q_pos = make([[30]], 2, 1, 16, "float32")
    where = (jnp.full((1, 1), start, jnp.int32), jnp.full((1, 1), length, jnp.int32), q_pos)
    for call in (
        lambda: ragged_attention(q, k, v, pos, *where, impl="native"),
        lambda: ragged_scores(q, k, pos, *where, cap=8, impl="native"),
        lambda: attention_with_weights(q, k, v, pos, *where, heads=(0,), upto=where[1], cap=8, impl="native"),
    ):
        with pytest.raises(jax.errors.JaxRuntimeError, match="outside the pool"):
            jax.block_until_ready(call())


def test_vmap_is_a_loop_of_calls():
    q, k, v, pos, *where = make([[300, 40]], 2, 1, 16, "float32")
    attend = lambda q: ragged_attention(q, k, v, pos, *where, impl="native")[0]  # noqa: E731
    queries = jnp.stack([q, 2 * q, -q])
    np.testing.assert_array_equal(jax.vmap(attend)(queries), jnp.stack([attend(x) for x in queries]))


def test_derivatives_are_those_of_the_xla_implementation():
    q, k, v, pos, *where = make([[30, 7]], 2, 1, 16, "float32")
    k, v = jnp.nan_to_num(k), jnp.nan_to_num(v)
    attend = lambda impl: lambda *qkv: ragged_attention(*qkv, pos, *where, impl=impl)  # noqa: E731
    got, want = (jax.jvp(attend(impl), (q, k, v), (k[:4].reshape(q.shape), v, k)) for impl in ("native", "xla"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6)


def test_the_default_on_a_cpu():
    operands = make([[30, 7]], 2, 1, 16, "float32")
    text = jax.jit(ragged_attention).lower(*operands).as_text()
    assert "kvjax_ragged_attention" in text and "while" not in text
    q, k, _, *where = operands
    assert "kvjax_ragged_scores" in jax.jit(lambda *x: ragged_scores(*x, cap=30)).lower(q, k, *where).as_text()


def test_refusals_say_what_is_taken():
    q, k, v, *where = make([[30, 7]], 2, 1, 8, "float32")
    assert "multiples of 16, got 8" in native.refuses(q, k, v, *where)
    np.testing.assert_array_equal(ragged_attention(q, k, v, *where)[0], ragged_attention(q, k, v, *where, impl="xla")[0])
    with pytest.raises(ValueError, match="native: takes head dimensions"):
        ragged_attention(q, k, v, *where, impl="native")
    q, k, v, *where = make([[30, 7]], 3, 90, 16, "float32")
    assert "256 query rows" in native.refuses(q, k, v, *where)
    q, k, v, pos, *where = make([[30, 7]], 2, 1, 16, "float32")
    assert "uint16 or int32" in native.refuses(q, k, v, pos.astype(jnp.int16), *where)
    assert "alike" in native.refuses(q, k, v.astype(jnp.bfloat16), pos, *where)
    q, index, book, *where = coded([[30, 7]], 2, 1, 8, 4, 16, False)
    assert "int8" in codes.refuses(q, index.astype(jnp.int8), book, *where)


def test_without_a_compiler_xla_runs_and_the_refusal_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(FileNotFoundError, match=r"install g\+\+"):
        library.built()
    reason = library.missing.__wrapped__()
    assert "C++ compiler" in reason and "no-such-compiler" in reason
    assert [(record.levelname, reason in record.message) for record in caplog.records] == [("WARNING", True)]
    monkeypatch.setattr(native.native, "missing", lambda: reason)
    operands = make([[30, 7]], 2, 1, 16, "float32")
    np.testing.assert_array_equal(ragged_attention(*operands)[0], ragged_attention(*operands, impl="xla")[0])
    with pytest.raises(ValueError, match="no-such-compiler"):
        api.ragged_attention(*operands, impl="native")


def test_a_compiler_that_fails_leaves_nothing_and_is_quoted(monkeypatch, tmp_path, capfd):
    broken = tmp_path / "c++"
    broken.write_text('#!/bin/sh\n[ "$1" = --version ] && echo broken 1.0 && exit\necho no space left >&2\nexit 1\n')
    broken.chmod(0o755)
    monkeypatch.setenv("CXX", str(broken))
    monkeypatch.setenv("KVJAX_CACHE", str(tmp_path / "cache"))
    with pytest.raises(subprocess.CalledProcessError):
        library.built()
    assert "no space left" in library.missing.__wrapped__()
    assert list((tmp_path / "cache" / "native").iterdir()) == []
    said = [line for line in capfd.readouterr().err.splitlines() if "compiling its CPU kernels" in line]
    assert len(said) == 2 and all(str(tmp_path / "cache" / "native") in line for line in said)  # it was asked for twice


def test_it_is_compiled_once_a_machine(capfd):
    assert library.built() == library.built() and library.built().stat().st_size > 1e4
    capfd.readouterr()
    library.built()
    assert capfd.readouterr() == ("", "")  # what is there already is not spoken of
