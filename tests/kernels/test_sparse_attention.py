"""Every implementation of sparse prefill attention against float64 NumPy."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels import sparse_attention as op
from kvjax.kernels.sparse_attention import api
from kvjax.kernels.sparse_attention.shapes import SHAPES

from .test_prefill_attention import assert_equal, close, make

#: (b, h, g, t, n, d), offset; how many columns, distances and blocks a head has at most.
CASES = {
    "one token": ((1, 1, 1, 1, 1, 8), 0, (1, 1, 0)),
    "short": ((2, 2, 3, 13, 13, 16), 0, (3, 4, 1)),
    "columns": ((1, 2, 2, 300, 300, 8), 0, (90, 1, 0)),
    "distances": ((1, 2, 2, 300, 300, 8), 0, (0, 130, 0)),
    "blocks": ((1, 2, 2, 300, 300, 8), 0, (0, 1, 2)),
    "all of them, in a chunk": ((2, 1, 2, 100, 700, 8), 576, (70, 60, 3)),
    "keys beyond the chunk": ((1, 1, 2, 64, 250, 8), 128, (30, 20, 2)),
    "everything": ((1, 1, 2, 200, 200, 8), 0, (200, 200, 4)),
}
HALF = ("short", "all of them, in a chunk")


def drawn(shape, most, seed=0) -> op.Chosen:
    """Some columns, distances (each query's own among them) and blocks of each head; not as many of each head."""
    b, h, g, t, n, _ = shape
    rng, sizes = np.random.default_rng(seed), (b, h, g)
    i, j = -(-t // 64), -(-n // 64)
    columns = np.full((*sizes, max(1, most[0])), n, np.int32)
    offsets, blocks = np.zeros((*sizes, n), bool), np.zeros((*sizes, i, j), bool)
    offsets[..., 0] = True
    for head in np.ndindex(sizes):
        few = [int(np.ceil(many * (1 - 0.3 * rng.random()))) for many in most]
        columns[head][: few[0]] = np.sort(rng.permutation(n)[: few[0]])
        offsets[head][rng.permutation(n)[: few[1]]] = True
        for row in range(i):
            blocks[head][row, rng.permutation(j)[: few[2]]] = True
    return op.Chosen(*map(jnp.asarray, (columns, offsets, blocks)))


def wanted(q, k, v, chosen, offset):
    """(out, lse) in float64, pair by pair."""
    q, k, v = (np.asarray(x, np.float64) for x in (q, k, v))
    b, h, g, t, d = q.shape
    columns, offsets, blocks = map(np.asarray, chosen)
    out, lse = np.zeros(q.shape), np.zeros(q.shape[:-1])
    for head in np.ndindex(b, h, g):
        for i in range(t):
            sees = [
                j for j in range(offset + i + 1)
                if j in columns[head] or offsets[head][offset + i - j] or blocks[head][i // 64, j // 64]
            ]  # fmt: skip
            s = k[head[:2]][sees] @ q[head][i] / np.sqrt(d)
            lse[head][i] = s.max() + np.log(np.exp(s - s.max()).sum())
            out[head][i] = np.exp(s - lse[head][i]) @ v[head[:2]][sees]
    return out, lse


@pytest.mark.parametrize("case, dtype", [(c, "float32") for c in CASES] + [(c, "bfloat16") for c in HALF])
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
@pytest.mark.usefixtures("native")
def test_matches_float64(impl, case, dtype):
    shape, offset, most = CASES[case]
    q, k, v = make(shape, dtype)
    chosen = drawn(shape, most)
    out, lse = wanted(q, k, v, chosen, offset)
    got, got_lse = op.sparse_attention(q, k, v, chosen, offset=jnp.int32(offset), impl=impl)
    assert got.dtype == dtype and got_lse.dtype == jnp.float32
    close(got, out, dtype)
    close(got_lse, lse, dtype)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
@pytest.mark.parametrize("impl", ("xla", "native"))
@pytest.mark.usefixtures("native")
def test_named_shapes(impl, name):
    """An eighth of each length, against the definition."""
    it = SHAPES[name]
    shape = 1, it.h, it.g, it.t // 8, it.n // 8, it.d
    q, k, v = make(shape, "float32")
    v += 1  # a long row's average of numbers around 0 is all cancellation
    chosen = drawn(shape, (it.columns // 8, it.offsets // 8, it.blocks // 8))
    found, right = (op.sparse_attention(q, k, v, chosen, offset=jnp.int32(0), impl=how) for how in (impl, "reference"))
    for got, want in zip(found, right, strict=True):
        close(got, np.asarray(want, np.float64), "float32")


@pytest.mark.usefixtures("native")
def test_a_row_is_the_same_to_the_bit_whatever_stands_beside_or_behind_it():
    """In C++: alone or in a batch, in a longer padding, in the whole prompt or in a chunk."""
    shape = (2, 2, 3, 200, 330, 16)
    q, k, v = make(shape, "float32")
    chosen = drawn(shape, (50, 40, 2))

    def attend(q, k, v, chosen, offset):
        return op.sparse_attention(q, k, v, chosen, offset=jnp.int32(offset), impl="native")

    whole, lse = attend(q, k, v, chosen, 64)
    for alone in (slice(0, 1), slice(1, 2)):
        own = op.Chosen(*(x[alone] for x in chosen))
        assert_equal(attend(q[alone], k[alone], v[alone], own, 64), (whole[alone], lse[alone]))
    columns, offsets, blocks = chosen
    fewer = op.Chosen(jnp.where(columns < 270, columns, 270), offsets[..., :270], blocks[..., :5])
    assert_equal(attend(q, k[:, :, :270], v[:, :, :270], fewer, 64), (whole, lse))
    last = op.Chosen(columns, offsets, blocks[:, :, :, 2:])
    assert_equal(attend(q[..., 128:, :], k, v, last, 192), (whole[..., 128:, :], lse[..., 128:]))


@pytest.mark.usefixtures("native")
def test_derivatives_are_those_of_the_xla_implementation():
    shape = (1, 1, 2, 70, 70, 8)
    q, k, v = make(shape, "float32")
    chosen = drawn(shape, (10, 9, 1))
    attend = lambda impl: lambda *qkv: op.sparse_attention(*qkv, chosen, offset=jnp.int32(0), impl=impl)  # noqa: E731
    got, want = (jax.jvp(attend(impl), (q, k, v), (q, v, k)) for impl in ("native", "xla"))
    for mine, theirs in zip(jax.tree.leaves(got), jax.tree.leaves(want), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=1e-5, atol=2e-6)


@pytest.mark.usefixtures("native")
def test_what_does_not_fit_is_an_error():
    shape = (1, 1, 1, 64, 128, 8)
    q, k, v = make(shape, "float32")
    chosen = drawn(shape, (4, 4, 1))
    with pytest.raises(ValueError, match="128 offsets and \\(1, 2\\) blocks"):
        op.sparse_attention(q, k, v, chosen._replace(blocks=chosen.blocks[..., :1]), offset=jnp.int32(0))
    with pytest.raises(ValueError, match="takes float32, bfloat16, float16"):
        op.sparse_attention(q.astype(jnp.float8_e4m3fn), k, v, chosen, offset=jnp.int32(0), impl="native")
    for offset in (-64, 3, 128):
        with pytest.raises(jax.errors.JaxRuntimeError, match="multiple of 64"):
            jax.block_until_ready(op.sparse_attention(q, k, v, chosen, offset=jnp.int32(offset), impl="native"))
