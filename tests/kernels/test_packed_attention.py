"""Attention from packed codes: every implementation against float64 NumPy over what the codes decode to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.codec import Affine
from kvjax.codec.affine import AffineRows
from kvjax.kernels.packed_attention import Packed, api, native, packed_attention, xla
from kvjax.kernels.ragged_attention import ragged_attention

SINKS, RING = 3, 80
#: lengths [b][h], g, t, d, window
CASES = {
    "one slot": ([[1]], 1, 1, 16, None),
    "empty beside full": ([[0, 5, 600]], 2, 1, 16, None),
    "all empty": ([[0, 0]], 2, 1, 16, None),
    "skewed": ([[3, 1300], [257, 0], [255, 256]], 3, 1, 64, None),
    "many query heads": ([[300, 7]], 11, 1, 128, None),
    "window": ([[40, 700]], 2, 1, 32, 33),
    "question": ([[40, 700], [64, 9]], 2, 9, 16, None),
    "a wide head": ([[130, 31]], 2, 1, 256, None),
}
#: key codec and value codec; exact rows beside them?
CODES = {
    "2 bits by page": (Affine(2, 32, "token"), Affine(2, 16), True),
    "4 bits by page": (Affine(4, 8, "token"), Affine(4, 16), True),
    "4 bits by page of 16": (Affine(4, 16, "token", "bfloat16"), Affine(4, 16), True),
    "8 bits by page": (Affine(8, 64, "token", "float32"), Affine(8, 16, store="float32"), True),
    "2 bits by slot": (Affine(2, 16), Affine(2, 16, store="bfloat16"), False),
    "4 bits by slot": (Affine(4, 16, store="bfloat16"), Affine(8, 4), True),
    "8 bits by slot": (Affine(8, 16), Affine(4, 8), False),
    "keys in 8 bits, values in 2": (Affine(8, 4), Affine(2, 16), True),
}


#: Each one program for operands of one form.
attend = jax.jit(packed_attention, static_argnames=("window", "impl"))
encode = jax.jit(lambda codec, x: codec.encode(x))
decode = jax.jit(lambda codec, rows: codec.decode(rows, jnp.float32))


def rows_of(codec: Affine, x: np.ndarray, used: np.ndarray) -> tuple:
    """A pool [s, d] as a codec's rows, with NaN steps where no region is."""
    rows = encode(codec, np.asarray(x, np.float32)[None, None])
    words, scale, low = (np.array(part)[0, 0] for part in (rows.words, rows.scale, rows.low))
    held = used.reshape(-1, codec.page).any(1)
    scale[~held] = low[~held] = np.nan
    return jnp.asarray(words), jnp.asarray(scale), jnp.asarray(low)


def make(lengths, g, t, d, codes, *, seed=0, tail_dtype="float32"):
    """Operands, and the pools [s, d] of keys and values by region as attention sees them."""
    rng = np.random.default_rng(seed)
    keys, values, tailed = codes
    lengths, align = np.array(lengths, np.int32), 64
    b, h = lengths.shape
    start, free = np.zeros((b, h), np.int32), align
    for row, head in rng.permutation(list(np.ndindex(b, h))):
        start[row, head] = free
        free += -(-lengths[row, head] // align) * align + align * rng.integers(0, 2)
    slots = -(-(free + 512) // 1024) * 1024  # few sizes
    used, pos, last = np.zeros(slots, bool), rng.integers(0, 10**6, slots).astype(np.int32), np.zeros(b, np.int32)
    for row, head in np.ndindex(b, h):
        n = lengths[row, head]
        region = slice(start[row, head], start[row, head] + n)
        used[region] = True
        pos[region] = np.sort(rng.choice(2 * n + 1, n, replace=False))
        last[row] = max(last[row], pos[region].max(initial=0))
    sides, seen = [], []
    for codec in (keys, values):
        x = rng.normal(size=(slots, d)) * rng.uniform(0.2, 3, d) + rng.normal(size=d)
        words, scale, low = rows_of(codec, x, used)
        tail = np.zeros((b, h, SINKS + RING if tailed else 0, d))
        behind = rng.integers(0, RING - codec.page + 1, (b, h)) if tailed else 0
        coded = np.maximum((lengths - behind) // codec.page * codec.page, 0) if tailed else lengths
        packed = Packed(
            words, scale, low, None, jnp.asarray(coded, jnp.int32), bits=codec.bits, page=codec.page, sinks=SINKS * tailed
        )
        dense = decoded(codec, packed)
        if tailed:
            for row, head in np.ndindex(b, h):
                for j in range(lengths[row, head]):
                    if j < SINKS or j >= coded[row, head]:
                        exact = np.asarray(jnp.asarray(rng.normal(size=d), tail_dtype), np.float64)
                        tail[row, head, j if j < SINKS else SINKS + j % RING] = dense[start[row, head] + j] = exact
        sides.append(packed.replace(tail=jnp.asarray(tail, tail_dtype)))
        seen.append(dense)
    q = jnp.asarray(rng.normal(size=(b, h, g, t, d)), jnp.float32)
    q_pos = (last[:, None] - t + 1 + np.arange(t)).astype(np.int32)
    where = [jnp.asarray(x) for x in (pos, start, lengths, q_pos)]
    return [q, *sides, *where], seen


def decoded(codec: Affine, side: Packed) -> np.ndarray:
    """The pool [s, d] as its codec reads it, in float64."""
    rows = jax.tree.map(lambda x: np.asarray(x)[None, None], AffineRows(side.words, side.scale, side.low))
    return np.asarray(decode(codec, rows))[0, 0].astype(np.float64)


def oracle(operands, seen, window=None, bias=None):
    """Dense attention in float64."""
    q, _, _, pos, start, length, q_pos = (np.asarray(x) if not isinstance(x, Packed) else x for x in operands)
    b, h, g, t, d = q.shape
    out, lse = np.zeros(q.shape), np.full(q.shape[:-1], -np.inf)
    for row, head in np.ndindex(b, h):
        region = slice(start[row, head], start[row, head] + length[row, head])
        k, v = seen[0][region], seen[1][region]
        z = q[row, head].astype(np.float64) @ k.T / np.sqrt(d) + (0 if bias is None else np.asarray(bias, np.float64)[region])
        at, now = pos[region].astype(np.int64), q_pos[row][:, None]
        sees = np.ones((t, len(at)), bool) if t == 1 and window is None else (at <= now) & (at > now - (window or 10**9))
        z = np.where(sees, z, -np.inf)
        top = np.maximum(z.max(-1, initial=-1e30, keepdims=True), -1e30)
        w = np.exp(z - top)
        total = w.sum(-1, keepdims=True)
        out[row, head] = np.where(total > 0, w @ v / np.where(total > 0, total, 1), 0)
        lse[row, head] = np.where(total > 0, top + np.log(np.where(total > 0, total, 1)), -np.inf)[..., 0]
    return out, lse


def close(got, want, tolerance=1e-5):
    """The largest error, relative to the scale of its row."""
    got = np.asarray(got, np.float64)
    assert np.array_equal(np.isneginf(got), np.isneginf(want))
    got, want = (np.where(np.isneginf(x), 0, x) for x in (got, want))
    scale = np.maximum(np.abs(want).max(-1, keepdims=True), 1.0)
    assert np.max(np.abs(got - want) / scale) <= tolerance


every_impl = pytest.mark.parametrize("impl", ["native", "xla", "reference"])


#: Every other pair of them for C++, and all codes over skewed regions; every sixth pair for the others.
PAIRS = [
    (case, codes, impl)
    for i, case in enumerate(CASES)
    for j, codes in enumerate(CODES)
    for impl in ("native", "xla", "reference")
    if ((i + j) % 2 == 0 or case == "skewed" if impl == "native" else (i + j) % 6 == 0)
]


@pytest.mark.parametrize("case, codes, impl", PAIRS)
def test_equals_decoding_and_attending(case, codes, impl):
    *shape, window = CASES[case]
    operands, seen = make(*shape, CODES[codes], seed=len(case))
    out, lse = attend(*operands, window=window, impl=impl)
    for got, want in zip((out, lse), oracle(operands, seen, window), strict=True):
        close(got, want)


@every_impl
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_queries_and_exact_rows_in_16_bits(dtype, impl):
    operands, seen = make([[300, 7], [90, 64]], 3, 1, 64, CODES["4 bits by page"], tail_dtype=dtype)
    operands[0] = operands[0].astype(dtype)
    out, lse = attend(*operands, impl=impl)
    assert out.dtype == dtype and lse.dtype == jnp.float32
    want, want_lse = oracle([operands[0].astype(jnp.float32), *operands[1:]], seen)
    close(out, want, 1e-2)
    close(lse, want_lse)


@every_impl
@pytest.mark.parametrize("window", [None, 50])
def test_biases_and_short_positions(impl, window):
    operands, seen = make([[300, 40]], 2, 1, 16, CODES["2 bits by page"])
    operands[3] = (operands[3] % 60000).astype(jnp.uint16)
    bias = jnp.asarray(np.random.default_rng(0).normal(size=operands[3].shape), jnp.float32)
    out, lse = attend(*operands, bias=bias, window=window, impl=impl)
    for got, want in zip((out, lse), oracle(operands, seen, window, bias), strict=True):
        close(got, want)


@pytest.mark.parametrize("impl", ["native", "xla"])
def test_codes_that_are_exact_give_what_dense_attention_gives(impl):
    """Integers of 0 to 255 with a step of 1: nothing is rounded, so both kernels see the same numbers."""
    rng = np.random.default_rng(0)
    operands, _ = make([[300, 77]], 4, 1, 128, (Affine(8, 32, "token"), Affine(8, 32), False))
    whole = rng.integers(0, 256, (2, operands[3].shape[0], 128)).astype(np.float64)
    diagonal = np.add.outer(np.arange(whole.shape[1]), np.arange(128)) % 4
    whole[:, diagonal == 0], whole[:, diagonal == 1] = 0, 255  # in every group, of tokens and of channels
    pools = []
    for side, x, codec in zip((1, 2), whole, (Affine(8, 32, "token"), Affine(8, 32)), strict=True):
        words, scale, low = rows_of(codec, x, np.ones(len(x), bool))
        assert (np.asarray(scale) == 1).mean() > 0.9
        operands[side] = operands[side].replace(words=words, scale=scale, low=low)
        pools.append(jnp.asarray(decoded(codec, operands[side]), jnp.float32))
    operands[0] = operands[0] / 64
    got, got_lse = attend(*operands, impl=impl)
    want, want_lse = ragged_attention(operands[0], *pools, *operands[3:], impl="reference")
    close(got, np.asarray(want, np.float64), 2e-6)
    close(got_lse, np.asarray(want_lse, np.float64), 2e-6)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("sign", [1, -1])
def test_the_largest_sums_of_codes(bits, sign):
    """Every code is the largest, all slots weigh the same: sums of integers are as large as they get."""
    codecs = Affine(bits, 32, "token"), Affine(bits, 32), False
    operands, _ = make([[256, 300]], 2, 1, 128, codecs)
    for side in (1, 2):
        packed = operands[side]
        full = jnp.full_like(packed.words, 2**32 - 1)
        operands[side] = packed.replace(words=full, scale=jnp.ones_like(packed.scale), low=jnp.zeros_like(packed.low))
    operands[0] = jnp.full_like(operands[0], sign * 0.73)
    out, lse = attend(*operands, impl="native")
    largest = 2**bits - 1
    np.testing.assert_allclose(out, largest, rtol=1e-6)
    score = sign * 0.73 * largest * np.sqrt(128)
    np.testing.assert_allclose(lse[0, :, 0, 0], score + np.log([256, 300]), rtol=1e-6)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("codes", CODES)
def test_a_region_is_the_same_bit_for_bit_whatever_the_others_are(codes):
    (q, k, v, pos, start, length, q_pos), _ = make([[700, 64, 1500, 0, 5, 520]], 3, 1, 64, CODES[codes], seed=4)
    out, lse = packed_attention(q, k, v, pos, start, length, q_pos, impl="native")
    for heads in ([2], [5, 3, 0], [4, 1]):
        cut = [side.replace(tail=side.tail[:, heads], coded=side.coded[:, heads]) for side in (k, v)]
        part, part_lse = packed_attention(q[:, heads], *cut, pos, start[:, heads], length[:, heads], q_pos, impl="native")
        np.testing.assert_array_equal(part, out[:, heads])
        np.testing.assert_array_equal(part_lse, lse[:, heads])


@pytest.mark.parametrize("bits, group, reduce", [(1, 32, "channel"), (3, 16, "token"), (2, 8, "channel"), (4, 24, "token")])
def test_other_codes_are_xlas(bits, group, reduce):
    keys = Affine(bits, group, reduce)
    operands, _ = make([[90, 7]], 2, 1, 32, (Affine(4, 8, "token"), Affine(4, 8), False))
    slots = -(-operands[3].shape[0] // 192) * 192
    start = jnp.array([[0, 192]], jnp.int32)
    x = np.random.default_rng(1).normal(size=(slots, 32))
    words, scale, low = rows_of(keys, x, np.ones(slots, bool))
    k = Packed(words, scale, low, operands[1].tail, operands[5], bits=bits, page=keys.page)
    v = Packed(*rows_of(Affine(4, 8), x, np.ones(slots, bool)), operands[2].tail, operands[5], bits=4)
    operands = [operands[0], k, v, jnp.zeros(slots, jnp.int32), start, *operands[5:]]
    dense = [decoded(keys, k), decoded(Affine(4, 8), v)]
    assert native.refuses(*operands, None, window=None)
    with pytest.raises(ValueError, match="native: takes"):
        packed_attention(*operands, impl="native")
    out, lse = attend(*operands)
    for got, want in zip((out, lse), oracle(operands, dense), strict=True):
        close(got, want)


@pytest.mark.usefixtures("native")
def test_the_default_on_a_cpu():
    operands, _ = make([[30, 7]], 2, 1, 16, CODES["4 bits by page"])
    text = jax.jit(packed_attention).lower(*operands).as_text()
    assert "kvjax_packed_attention" in text and "while" not in text


@pytest.mark.usefixtures("native")
def test_derivatives_are_those_of_the_xla_implementation():
    (q, *rest), _ = make([[30, 70]], 2, 1, 16, CODES["2 bits by page"])
    of = lambda impl: lambda q: attend(q, *rest, impl=impl)  # noqa: E731
    got, want = (jax.jvp(of(impl), (q,), (q[::-1],)) for impl in ("native", "xla"))
    for a, b in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("start, length", [(-64, 4), (0, 10**6), (0, -1), (2**31 - 64, 64)])
def test_a_region_outside_the_pool_is_an_error_and_not_a_crash(start, length):
    (q, k, v, pos, *_, q_pos), _ = make([[30]], 2, 1, 16, CODES["2 bits by slot"])
    where = (jnp.full((1, 1), start, jnp.int32), jnp.full((1, 1), length, jnp.int32), q_pos)
    with pytest.raises(jax.errors.JaxRuntimeError, match="outside the pool"):
        jax.block_until_ready(packed_attention(q, k, v, pos, *where, impl="native"))


@pytest.mark.usefixtures("native")
@pytest.mark.parametrize("coded", [-5, 10**6])
def test_a_count_of_codes_beyond_the_region_reads_no_further(coded):
    (q, k, v, *where), _ = make([[30, 7]], 2, 1, 16, CODES["2 bits by slot"])
    wrong = jnp.full((1, 2), coded, jnp.int32)
    out, _ = packed_attention(q, k.replace(coded=wrong), v.replace(coded=wrong), *where, impl="native")
    assert coded < 0 or np.array_equal(out, packed_attention(q, k, v, *where, impl="native")[0])


WRONG = {
    "values by page": (lambda q, k, v, *rest: (q, v, k, *rest), "values are coded slot by slot"),
    "too few words": (lambda q, k, v, *rest: (q, k.replace(words=k.words[:-1]), v, *rest), "k must be codes"),
    "exact rows of others": (lambda q, k, v, *rest: (q, k, v.replace(tail=v.tail[:, :1]), *rest), "v.tail must be"),
    "sinks without rows": (lambda q, k, v, *rest: (q, k.replace(tail=k.tail[:, :, :0]), v, *rest), "a row behind its 3 sinks"),
    "only sinks": (lambda q, k, v, *rest: (q, k.replace(tail=k.tail[:, :, :3]), v, *rest), "a row behind its 3 sinks"),
    "start of others": (lambda q, k, v, pos, start, *rest: (q, k, v, pos, start[:, :1], *rest), "start"),
}


@pytest.mark.parametrize("name", WRONG)
def test_operands_that_do_not_fit_are_refused(name):
    change, words = WRONG[name]
    operands, _ = make([[30, 7]], 2, 1, 16, CODES["4 bits by page"])
    with pytest.raises((ValueError, TypeError), match=words):  # a TypeError where types are checked
        packed_attention(*change(*operands))


def test_small_blocks_are_the_same_numbers():
    operands, seen = make([[300, 7]], 2, 1, 16, CODES["8 bits by page"])
    out, _ = xla.attention(*operands, None, window=None, config=xla.Config(block=64))
    close(out, oracle(operands, seen)[0])
    assert set(api.IMPLEMENTATIONS) == {"xla", "reference"}
