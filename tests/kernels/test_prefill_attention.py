"""Every implementation of prefill attention against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels import prefill_attention as op
from kvjax.kernels.prefill_attention import api, cudnn, reference, xla

from . import oracle

#: (b, h, g, t, n, d), offset, window. Tiles are what xla.Config says: 512 positions by 512 keys.
CASES = {
    "one token": ((1, 1, 1, 1, 1, 8), 0, None),
    "short": ((2, 2, 3, 13, 13, 16), 0, None),
    "whole prompt": ((1, 2, 2, 300, 300, 8), 0, None),
    "keys beyond the prompt": ((1, 1, 2, 100, 700, 8), 0, None),
    "chunk": ((2, 1, 2, 70, 650, 8), 580, None),
    "chunk in the middle": ((1, 1, 3, 130, 1100, 8), 511, None),
    "one row at the end": ((1, 2, 1, 1, 1025, 8), 1024, None),
    "window of one": ((1, 1, 1, 40, 40, 8), 0, 1),
    "more heads than a tile's rows": ((1, 1, 16, 230, 240, 8), 3, None),
    "window": ((1, 2, 2, 300, 300, 8), 0, 37),
    "window over a chunk": ((1, 1, 2, 150, 1100, 8), 900, 600),
    "window wider than the prompt": ((1, 1, 2, 150, 150, 8), 0, 4000),
}
#: Cases worth a second compilation in 16 bits.
HALF = ("short", "chunk", "window")
TOLERANCE = {"float32": 2e-6, "bfloat16": 2e-2}


def make(shape, dtype, seed=0):
    """Random q, k, v."""
    b, h, g, t, n, d = shape
    keys = jax.random.split(jax.random.key(seed), 3)
    sizes = (b, h, g, t, d), (b, h, n, d), (b, h, n, d)
    return [jax.random.normal(key, size, dtype) for key, size in zip(keys, sizes, strict=True)]


def close(got, want, dtype):
    """The largest error, relative to the scale of its row."""
    scale = np.maximum(np.abs(want).max(axis=-1, keepdims=True), 1e-3)
    assert np.max(np.abs(np.asarray(got, np.float64) - want) / scale) <= TOLERANCE[dtype]


@pytest.mark.parametrize("case, dtype", [(c, "float32") for c in CASES] + [(c, "bfloat16") for c in HALF])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
@pytest.mark.usefixtures("native")
def test_matches_float64(impl, case, dtype):
    shape, offset, window = CASES[case]
    q, k, v = make(shape, dtype)
    length = np.maximum(offset + shape[3] - 3 * np.arange(shape[0]) - 1, 1).astype(np.int32)
    out, lse, sums = oracle.prefill(*map(np.asarray, (q, k, v)), offset=offset, window=window, length=length)
    got, got_lse = op.prefill_attention(q, k, v, offset=jnp.int32(offset), window=window, impl=impl)
    assert got.dtype == dtype and got_lse.dtype == jnp.float32
    close(got, out, dtype)
    close(got_lse, lse, dtype)
    got_sums = op.column_sums(q, k, got_lse, offset=offset, length=jnp.asarray(length), window=window, impl=impl)
    close(got_sums, sums, dtype)
    how = dict(offset=jnp.int32(offset), length=jnp.asarray(length), window=window, impl=impl)
    *both, both_sums = op.attention_and_column_sums(q, k, v, **how)
    assert_equal(both, (got, got_lse))
    close(both_sums, sums, dtype)


@pytest.mark.parametrize("tile", [(8, 16), (7, 5), (64, 64)])
@pytest.mark.parametrize("window", [None, 11])
def test_any_tiling_is_the_same_function(tile, window):
    q, k, v = make((1, 2, 2, 45, 90, 8), "float32")
    config = xla.Config(tile[0], 1536, tile[1])
    for offset in (0, 20, 45):
        out, lse, sums = oracle.prefill(*map(np.asarray, (q, k, v)), offset=offset, window=window, length=[offset + 40])
        got, got_lse = xla.attention(q, k, v, offset, window=window, config=config)
        close(got, out, "float32")
        close(got_lse, lse, "float32")
        length = jnp.array([offset + 40], jnp.int32)
        close(xla.column_sums(q, k, lse, offset, length, window=window, config=config), sums, "float32")


@pytest.mark.parametrize("case", ["short", "chunk in the middle", "window over a chunk"])
def test_heads_together_as_elsewhere_than_on_a_cpu(case, monkeypatch):
    monkeypatch.setattr(xla, "_each_head", lambda head, operands: xla._together(head, *operands))
    shape, offset, window = CASES[case]
    q, k, v = make(shape, "float32")
    length = np.full(shape[0], offset + shape[3] - 2, np.int32)
    out, lse, sums = oracle.prefill(*map(np.asarray, (q, k, v)), offset=offset, window=window, length=length)
    got, got_lse = xla.attention.__wrapped__(q, k, v, offset, window=window)
    close(got, out, "float32")
    close(got_lse, lse, "float32")
    close(xla.column_sums.__wrapped__(q, k, lse, offset, length, window=window), sums, "float32")


@pytest.mark.parametrize("case", ["whole prompt", "keys beyond the prompt", "chunk in the middle", "one row at the end"])
def test_rows_over_what_lies_before_and_over_each_other_are_attention(case):
    """What cuDNN is asked for, by the reference: its causal mask begins at the first key."""
    shape, offset, _ = CASES[case]
    q, k, v = make(shape, "float32")
    heads = lambda rows: rows.reshape(shape[0], shape[1], shape[2], shape[3], shape[5])  # noqa: E731
    flat = lambda out, lse: (out.reshape(q.shape[0], -1, *out.shape[3:]), lse.reshape(q.shape[0], -1, lse.shape[3]))  # noqa: E731

    def causal(rows, keys, values):
        return flat(*reference.attention(heads(rows), keys, values, 0, window=None))

    def over(rows, keys, values, count):  # every row sees all `count` keys, as the last row of a prompt of that length
        each = jnp.moveaxis(heads(rows), 3, 0)[:, :, :, :, None]
        out, lse = jax.vmap(lambda row: reference.attention(row, keys, values, count[0] - 1, window=None))(each)
        return flat(jnp.moveaxis(out[..., 0, :], 0, 3), jnp.moveaxis(lse[..., 0], 0, 3))

    out, lse, _ = oracle.prefill(*map(np.asarray, (q, k, v)), offset=offset)
    got, got_lse = cudnn.in_two(q, k, v, jnp.int32(offset), causal, over)
    close(got, out, "float32")
    close(got_lse, lse, "float32")


@pytest.mark.parametrize(
    "words, change", [("no window", {"window": 3}), ("takes bfloat16", {"dtype": "float32"}), ("up to 128", {"d": 136})]
)
def test_cudnn_refuses(words, change):
    kind, d, window = change.get("dtype", "bfloat16"), change.get("d", 64), change.get("window")
    q, k, v = make((1, 1, 1, 4, 8, d), kind)
    assert words in cudnn.refuses(q, k, v, 0, window=window)


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.usefixtures("native")
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_or_behind_it(window):
    """In C++: alone or in a batch, in a longer padding, in the whole prompt or in a chunk of any size."""
    q, k, v = make((2, 2, 3, 200, 330, 16), "float32")
    attend = lambda q, k, v, offset: op.prefill_attention(q, k, v, offset=offset, window=window, impl="native")  # noqa: E731
    whole, lse = attend(q, k, v, 100)
    for alone in (slice(0, 1), slice(1, 2)):
        assert_equal(attend(q[alone], k[alone], v[alone], 100), (whole[alone], lse[alone]))
    assert_equal(attend(q, k[:, :, :300], v[:, :, :300], 100), (whole, lse))
    for first, size in ((0, 1), (37, 100), (64, 64), (199, 1)):
        rows = slice(first, first + size)
        assert_equal(attend(q[..., rows, :], k, v, 100 + first), (whole[..., rows, :], lse[..., rows]))


@pytest.mark.parametrize("window", [None, 70])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.usefixtures("native")
def test_sums_of_columns_are_the_same_to_the_bit_whatever_stands_beside_or_behind_them(window, dtype):
    """In C++, in one pass with attention over several groups of query tiles: alone, in a batch, in a longer padding."""
    q, k, v = make((2, 2, 3, 700, 830, 16), dtype)
    length = jnp.array([720, 600], jnp.int32)

    def run(q, k, v, length):
        return op.attention_and_column_sums(q, k, v, offset=100, length=length, window=window, impl="native")

    whole = run(q, k, v, length)
    for row in range(2):
        alone = slice(row, row + 1)
        assert_equal(run(q[alone], k[alone], v[alone], length[alone]), [x[alone] for x in whole])
    shorter = run(q[..., :640, :], k[:, :, :740], v[:, :, :740], length)
    assert_equal(shorter, (whole[0][..., :640, :], whole[1][..., :640], whole[2][..., :740]))
    assert not whole[2][..., 720:].any()


def assert_equal(got, want):
    for mine, theirs in zip(got, want, strict=True):
        np.testing.assert_array_equal(mine, theirs)


@pytest.mark.usefixtures("native")
def test_native_takes_three_kinds_of_numbers():
    q, k, v = make((1, 2, 2, 70, 150, 24), "float32")
    want, lse, _ = oracle.prefill(*(np.asarray(x.astype(jnp.float16)) for x in (q, k, v)), offset=80)
    got, got_lse = op.prefill_attention(*(x.astype(jnp.float16) for x in (q, k, v)), offset=80, impl="native")
    assert got.dtype == jnp.float16
    np.testing.assert_allclose(np.asarray(got, np.float64), want, atol=2e-3)
    np.testing.assert_allclose(got_lse, lse, atol=1e-4)
    with pytest.raises(ValueError, match="takes float32, bfloat16, float16"):
        op.prefill_attention(q.astype(jnp.float8_e4m3fn), k, v, offset=80, impl="native")


@pytest.mark.usefixtures("native")
def test_keys_and_values_of_two_kinds_are_not_read_as_one():
    """C++ reads values as numbers of the keys' kind: wider ones would be garbage, narrower ones end before it does."""
    q, k, v = make((1, 1, 2, 70, 70, 16), "float32")
    for kinds in (("float32", "bfloat16"), ("bfloat16", "float32")):
        k, v = k.astype(kinds[0]), v.astype(kinds[1])
        want = op.prefill_attention(q, k, v, offset=0, impl="xla")
        assert_equal(op.prefill_attention(q, k, v, offset=0), want)
        with pytest.raises(ValueError, match="native: takes keys and values alike"):
            op.prefill_attention(q, k, v, offset=0, impl="native")


def test_chunks_add_up_to_the_whole():
    q, k, v = make((1, 2, 2, 200, 200, 8), "float32")
    length = jnp.array([190], jnp.int32)
    whole, lse = op.prefill_attention(q, k, v, offset=0)
    sums = op.column_sums(q, k, lse, offset=0, length=length)
    parts, total = [], 0
    for offset in range(0, 200, 50):
        chunk = q[:, :, :, offset : offset + 50]
        out, lse = op.prefill_attention(chunk, k, v, offset=jnp.int32(offset))
        parts.append(out)
        total += op.column_sums(chunk, k, lse, offset=jnp.int32(offset), length=length)
    close(jnp.concatenate(parts, axis=3), np.asarray(whole, np.float64), "float32")
    close(total, np.asarray(sums, np.float64), "float32")


def test_offset_and_length_are_data():
    traced = []

    @jax.jit
    def run(q, k, v, offset, length):
        traced.append(1)
        out, lse = op.prefill_attention(q, k, v, offset=offset)
        return out, op.column_sums(q, k, lse, offset=offset, length=length)

    q, k, v = make((1, 1, 2, 20, 90, 8), "float32")
    for offset in (0, 33, 70):
        run(q, k, v, jnp.int32(offset), jnp.array([offset + 10], jnp.int32))
    assert len(traced) == 1


def test_memory_is_linear_in_the_prompt():
    shape = (1, 1, 3, 4096, 4096, 64)
    q, k, v = (jax.ShapeDtypeStruct(x.shape, x.dtype) for x in jax.eval_shape(lambda: make(shape, "float32")))
    run = jax.jit(lambda q, k, v, offset: op.prefill_attention(q, k, v, offset=offset))
    compiled = run.lower(q, k, v, jnp.int32(0)).compile()
    operands = 4 * (2 * 3 + 2) * 4096 * 64
    assert compiled.memory_analysis().temp_size_in_bytes <= 3 * operands + 16e6


def test_refusals_name_the_way_out():
    q, k, v = make((1, 1, 1, 4, 8, 8), "float32")
    with pytest.raises(ValueError, match="xla, reference"):
        op.prefill_attention(q, k, v, offset=0, impl="cudnn")
    with pytest.raises(ValueError, match="window"):
        op.prefill_attention(q, k, v, offset=0, window=0)
    with pytest.raises(ValueError, match="4 query rows but 2 keys"):
        op.prefill_attention(q, k[:, :, :2], v[:, :, :2], offset=0)
    # Under the run-time type checks of this suite the annotations speak first.
    with pytest.raises(ValueError, match="must agree"):
        api._check(q, k, v[..., :4], window=None)
