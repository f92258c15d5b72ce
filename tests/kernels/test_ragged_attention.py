"""Every implementation of ragged attention against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels import ragged_attention as op
from kvjax.kernels.ragged_attention import api, shapes, xla

from . import oracle

TOLERANCE = {"float32": 2e-6, "float16": 2e-3, "bfloat16": 2e-2}
#: Cases worth a second compilation in 16 bits.
HALF = ("skewed", "question in a window")
#: lengths [b][h], g, t, d, window
CASES = {
    "one slot": ([[1]], 1, 1, 16, None),
    "empty beside full": ([[0, 5, 600]], 2, 1, 16, None),
    "all empty": ([[0, 0]], 2, 2, 16, None),
    "skewed": ([[3, 1300], [257, 0], [255, 256]], 3, 1, 16, None),
    "window": ([[40, 700]], 2, 1, 16, 33),
    "question": ([[40, 700], [64, 9]], 2, 9, 16, None),
    "question in a window": ([[40, 700], [64, 9]], 2, 9, 16, 50),
}


def make(lengths, g, t, d, dtype, seed=0):
    """Operands: regions in shuffled order with gaps, NaN in every slot that no region holds."""
    rng = np.random.default_rng(seed)
    lengths = np.array(lengths, np.int32)
    b, h = lengths.shape
    start, free = np.zeros((b, h), np.int32), 8
    for row, head in rng.permutation(list(np.ndindex(b, h))):
        start[row, head] = free
        free += -(-lengths[row, head] // 8) * 8 + 8 * rng.integers(0, 3)
    slots = free + 512
    k, v = np.full((2, slots, d), np.nan)
    pos = rng.integers(0, 10**6, slots).astype(np.int32)
    last = np.zeros(b, np.int32)
    for row, head in np.ndindex(b, h):
        n = lengths[row, head]
        region = slice(start[row, head], start[row, head] + n)
        k[region], v[region] = rng.normal(size=(2, n, d))
        pos[region] = np.sort(rng.choice(2 * n + 1, n, replace=False))
        last[row] = max(last[row], pos[region].max(initial=0))
    q_pos = (last[:, None] - t + 1 + np.arange(t)).astype(np.int32)
    q = rng.normal(size=(b, h, g, t, d))
    return [jnp.asarray(x, dtype) for x in (q, k, v)] + [jnp.asarray(x) for x in (pos, start, lengths, q_pos)]


def close(got, want, dtype):
    """The largest error, relative to the scale of its row; infinities must be the same."""
    got = np.asarray(got, np.float64)
    assert np.array_equal(np.isneginf(got), np.isneginf(want))
    got, want = (np.where(np.isneginf(x), 0, x) for x in (got, want))
    scale = np.maximum(np.abs(want).max(axis=-1, keepdims=True), 1e-3)
    assert np.max(np.abs(got - want) / scale) <= TOLERANCE[dtype]


def probs(q, k, pos, start, length, q_pos, lse, **how):
    """Probabilities of every slot, by the scores."""
    return op.probabilities(op.ragged_scores(q, k, pos, start, length, q_pos, **how), lse)


def biases(start, length, slots: int, seed=0):
    """A bias for each slot, some of them -inf; NaN in every slot that no region holds."""
    rng, bias = np.random.default_rng(seed), np.full(slots, np.nan, np.float32)
    for at in np.ndindex(start.shape):
        drawn = np.where(rng.random(length[at]) < 0.1, -np.inf, 2 * rng.normal(size=length[at]))
        drawn[:1] = 0.5  # something is left
        bias[start[at] : start[at] + length[at]] = drawn
    return bias


@pytest.mark.parametrize("impl", ["reference", "xla", "native"])
def test_nan_in_a_key_is_not_swallowed(impl):
    """Of the head that holds it, and of no other."""
    q, k, v, pos, start, length, q_pos = make([[40, 700]], 2, 1, 16, "float32")
    k = k.at[start[0, 1] + 300, 5].set(jnp.nan)
    out, _ = op.ragged_attention(q, k, v, pos, start, length, q_pos, impl=impl)
    assert np.isfinite(out[0, 0]).all() and np.isnan(out[0, 1]).all()


def check(impl, operands, dtype, window, cap, bias=None):
    """attention and probs of one implementation against the oracle."""
    q, k, v, pos, start, length, q_pos = operands
    out, lse, weights = oracle.ragged(*map(np.asarray, operands), window=window, cap=cap, bias=bias)
    got, got_lse = op.ragged_attention(*operands, window=window, impl=impl, bias=bias)
    assert got.dtype == dtype and got_lse.dtype == jnp.float32
    close(got, out, dtype)
    close(got_lse, lse, dtype)
    got = probs(q, k, pos, start, length, q_pos, got_lse, cap=cap, window=window, impl=impl, bias=bias)
    assert got.shape == (*q.shape[:-1], cap) and got.dtype == jnp.float32
    close(got, weights, dtype)


@pytest.mark.parametrize("case, dtype", [(c, "float32") for c in CASES] + [(c, "bfloat16") for c in HALF])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_matches_float64(impl, case, dtype):
    lengths, g, t, d, window = CASES[case]
    check(impl, make(lengths, g, t, d, dtype), dtype, window, cap=max(1, int(np.max(lengths))))


BIASED = [("skewed", "float32"), ("skewed", "bfloat16"), ("question", "float32"), ("window", "float32")]


@pytest.mark.parametrize("case, dtype", BIASED)
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_a_bias_is_added_to_its_slots_scores(impl, case, dtype):
    lengths, g, t, d, window = CASES[case]
    q, k, v, pos, start, length, q_pos = operands = make(lengths, g, t, d, dtype)
    bias, cap = jnp.asarray(biases(np.asarray(start), np.asarray(length), len(k))), int(np.max(lengths))
    check(impl, operands, dtype, window, cap, bias)
    heads, how = (1, 0), dict(window=window, impl=impl, bias=bias)
    out, lse, got = op.attention_with_weights(*operands, heads=heads, upto=length[:, heads] // 2, cap=cap, **how)
    for seen, plain in zip((out, lse), op.ragged_attention(*operands, **how), strict=True):
        np.testing.assert_array_equal(seen, plain)
    some = q[:, heads], k, v, pos, start[:, heads], length[:, heads] // 2, q_pos
    close(got, oracle.ragged(*map(np.asarray, some), window=window, cap=cap, bias=bias)[2], dtype)


def test_a_bias_has_derivatives():
    """d out / d bias_j = p_j (v_j - out), for soft gates of slots; nothing of slots outside the regions."""
    q, k, v, pos, start, length, q_pos = operands = make([[40, 9]], 2, 1, 16, "float32")
    bias = jnp.zeros(len(k))
    attend = lambda bias: op.ragged_attention(*operands, bias=bias)  # noqa: E731
    (out, lse), tangent = jax.jvp(attend, (bias,), (bias.at[start[0, 0] + 3].set(1.0),))
    p = probs(q, k, pos, start, length, q_pos, lse, cap=40)[0, 0, :, 0, 3]
    want = p[:, None] * (v[start[0, 0] + 3] - out[0, 0, :, 0])
    np.testing.assert_allclose(tangent[0][0, 0, :, 0], want, atol=1e-6)
    assert not np.any(tangent[0][0, 1])


@pytest.mark.parametrize("name", shapes.SMALL)
def test_real_shapes(name):
    shape = shapes.SMALL[name]
    operands = make(shape.lengths, shape.g, shape.t, shape.d, "float32")
    out, lse, _ = oracle.ragged(*map(np.asarray, operands))
    got, got_lse = op.ragged_attention(*operands)
    close(got, out, "float32")
    close(got_lse, lse, "float32")


@pytest.mark.parametrize("config", [xla.Config(8, 3, 8), xla.Config(100, 1, 100), xla.Config(64, 2, 16), xla.Config(512, 8)])
@pytest.mark.parametrize("t", [1, 4])
def test_any_tiling_is_the_same_function(config, t):
    operands = make([[0, 37, 8], [200, 1, 63]], 2, t, 8, "float32", seed=3)
    out, lse, _ = oracle.ragged(*map(np.asarray, operands), window=90)
    got, got_lse = xla.attention(*operands, window=90, config=config)
    close(got, out, "float32")
    close(got_lse, lse, "float32")


def test_probabilities_beyond_cap_are_left_out():
    q, k, v, pos, start, length, q_pos = operands = make([[30, 7]], 2, 1, 16, "float32")
    for impl in (*api.IMPLEMENTATIONS, None):
        _, lse = op.ragged_attention(*operands, impl=impl)
        full = probs(q, k, pos, start, length, q_pos, lse, cap=40, impl=impl)
        part = probs(q, k, pos, start, length, q_pos, lse, cap=12, impl=impl)
        np.testing.assert_allclose(full[..., :12], part, rtol=1e-6)
        assert part.shape[-1] == 12 and not np.any(full[..., 30:])
        np.testing.assert_allclose(full.sum(axis=-1), 1.0, rtol=1e-5)


@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
@pytest.mark.parametrize("case", ["empty beside full", "skewed", "window", "question", "question in a window"])
def test_watched_probabilities_are_about_the_first_slots_alone(impl, case):
    lengths, g, t, d, window = CASES[case]
    q, k, v, pos, start, length, q_pos = operands = make(lengths, g, t, d, "float32", seed=5)
    heads, cap = tuple(reversed(range(q.shape[1]))), int(length.max()) + 40
    part = lambda share: jnp.minimum(length, (length * share).astype(jnp.int32) + 1)[:, heads]  # noqa: E731
    for upto in (length[:, heads] + 9, part(0.6), jnp.minimum(length[:, heads], 256), 0 * part(1)):
        out, lse, got = op.attention_with_weights(*operands, heads=heads, upto=upto, cap=cap, window=window, impl=impl)
        plain = op.ragged_attention(*operands, window=window, impl=impl)
        np.testing.assert_array_equal(out, plain[0])
        np.testing.assert_array_equal(lse, plain[1])
        arrays = q[:, heads], k, v, pos, start[:, heads], jnp.minimum(length[:, heads], upto), q_pos
        close(got, oracle.ragged(*map(np.asarray, arrays), window=window, cap=cap)[2], "float32")


@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_watched_probabilities_do_not_drown_in_what_lies_behind(impl):
    q, k, v, pos, start, length, q_pos = make([[300]], 2, 1, 16, "float32")
    k = k.at[int(start[0, 0]) + 299].set(1e4 * q[0, 0, 0, 0])
    how = dict(heads=(0,), upto=length - 1, cap=300, impl=impl)
    got = op.attention_with_weights(q, k, v, pos, start, length, q_pos, **how)[2]
    np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)
    less = op.attention_with_weights(q, k, v, pos, start, length - 1, q_pos, **how)[2]
    np.testing.assert_allclose(got, less, rtol=1e-5)


def test_watched_probabilities_have_a_cap():
    operands = make([[300, 20]], 2, 1, 16, "float32")
    for impl in (*api.IMPLEMENTATIONS, "native"):
        how = dict(heads=(1, 0), upto=operands[5][:, ::-1], impl=impl)
        got = op.attention_with_weights(*operands, cap=270, **how)[2]
        assert got.shape == (1, 2, 2, 1, 270)
        np.testing.assert_allclose(got.sum(-1), 1, rtol=1e-5)


def test_lengths_are_data():
    traced = []

    @jax.jit
    def run(*operands):
        traced.append(1)
        return op.ragged_attention(*operands)[0]

    q, k, v, pos, start, length, q_pos = make([[300, 40]], 2, 1, 8, "float32")
    for lengths in ([300, 40], [0, 40], [17, 0], [299, 39]):
        run(q, k, v, pos, start, jnp.array([lengths], jnp.int32), q_pos)
    assert len(traced) == 1


def test_refusals_name_the_way_out():
    q, k, v, pos, start, length, q_pos = make([[30, 7]], 2, 1, 8, "float32")
    with pytest.raises(ValueError, match="xla, reference"):
        op.ragged_attention(q, k, v, pos, start, length, q_pos, impl="cudnn")
    with pytest.raises(ValueError, match="window"):
        op.ragged_attention(q, k, v, pos, start, length, q_pos, window=0)
    with pytest.raises(ValueError, match="cap"):
        op.ragged_scores(q, k, pos, start, length, q_pos, cap=0)
    for heads in ((0, 0), (2,)):
        with pytest.raises(ValueError, match="different ones below 2"):
            op.attention_with_weights(q, k, v, pos, start, length, q_pos, heads=heads, upto=length[:, : len(heads)], cap=9)
    # Under the run-time type checks of this suite the annotations speak first.
    with pytest.raises(ValueError, match="one a slot"):
        api._check(q, k, v, pos, start, length, q_pos, None, jnp.zeros(3))
    with pytest.raises(ValueError, match="pos"):
        api._check(q, k, v, pos[:-1], start, length, q_pos, None, None)
    with pytest.raises(ValueError, match="q_pos"):
        api._check(q, k, v, pos, start, length, q_pos[:, :0], None, None)
    with pytest.raises(ValueError, match="start"):
        api._check(q, k, v, pos, start[:, :1], length, q_pos, None, None)


@pytest.mark.parametrize("t", [1, 3])
def test_a_region_is_the_same_bit_for_bit_wherever_its_blocks_lie_among_others(t):
    """One program, regions in another order: their blocks fall into other turns, their sums may not."""
    q, k, v, pos, start, length, q_pos = make([[700, 64, 2000, 0, 1300, 5, 520, 90]], 2, t, 16, "float32", seed=4)
    out, lse = xla.attention(q, k, v, pos, start, length, q_pos, window=None, config=xla.Config(64, 8))
    for shift in (1, 3, 6):
        moved = [jnp.roll(x, shift, axis=1) for x in (q, start, length)]
        got, got_lse = xla.attention(moved[0], k, v, pos, *moved[1:], q_pos, window=None, config=xla.Config(64, 8))
        np.testing.assert_array_equal(got, jnp.roll(out, shift, axis=1))
        np.testing.assert_array_equal(got_lse, jnp.roll(lse, shift, axis=1))
