"""Every implementation of scores from codes against the NumPy transcription."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from kvjax.kernels.codebook_scores import api, codebook_scores, xla
from tests.reference import hcattention as hc

from .test_ragged_attention import make

#: lengths [b][h], g, t, d, groups, centroids, shared, window
CASES = {
    "one slot": ([[1]], 1, 1, 8, 4, 16, False, None),
    "empty beside full": ([[0, 5, 600]], 2, 1, 8, 4, 16, False, None),
    "all empty": ([[0, 0]], 2, 2, 8, 2, 4, False, None),
    "skewed": ([[3, 1300], [257, 0]], 3, 1, 16, 8, 256, False, None),
    "shared codebook": ([[40, 600]], 2, 1, 16, 8, 32, True, None),
    "one group": ([[40, 60]], 2, 1, 8, 1, 7, False, None),
    "16-bit codes": ([[40, 60]], 2, 1, 8, 4, 300, False, None),
    "question": ([[40, 700], [64, 9]], 2, 9, 8, 4, 16, False, None),
    "question in a window": ([[40, 700], [64, 9]], 2, 9, 8, 4, 16, True, 50),
}


def operands(lengths, g, t, d, groups, centroids, shared, seed=0):
    """q, codes, codebook and where; slots that no region holds have codes all over the dtype's range."""
    q, k, _, pos, start, lengths, q_pos = make(lengths, g, t, d, "float32", seed)
    rng = np.random.default_rng(seed)
    dtype = np.uint8 if centroids <= 256 else np.uint16
    codes = rng.integers(0, np.iinfo(dtype).max + 1, (k.shape[0], groups)).astype(dtype)
    held = ~np.isnan(np.asarray(k[:, 0]))
    codes[held] = rng.integers(0, centroids, (held.sum(), groups))
    book = rng.normal(size=(q.shape[1], 1 if shared else groups, centroids, d // groups)).astype(np.float16)
    return q, jnp.asarray(codes), jnp.asarray(book), pos, start, lengths, q_pos


def oracle(q, codes, book, pos, start, length, q_pos, *, window, cap):
    """Scores query by query, by HA4 and HA5."""
    out = np.full((*q.shape[:-1], cap), -np.inf)
    for b, h, g, t in np.ndindex(*q.shape[:-1]):
        slots = np.arange(start[b, h], start[b, h] + min(length[b, h], cap))
        z = hc.look_up(hc.query_table(q[b, h, g, t], book[h]), codes[slots].astype(int)) / np.sqrt(q.shape[-1])
        seen = pos[slots] <= q_pos[b, t]
        seen &= window is None or pos[slots] > q_pos[b, t] - window
        out[b, h, g, t, : len(slots)] = np.where(seen, z, -np.inf)
    return out


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_matches_the_transcription(impl, case):
    *shape, window = CASES[case]
    given = operands(*shape)
    cap = max(1, int(np.max(shape[0])))
    want = oracle(*map(np.asarray, given), window=window, cap=cap)
    got = codebook_scores(*given, cap=cap, window=window, impl=impl)
    assert got.dtype == jnp.float32 and got.shape == want.shape
    np.testing.assert_allclose(got, want, atol=5e-6)


@pytest.mark.parametrize("block", [8, 100, 512])
def test_any_tiling_is_the_same_function(block):
    given = operands([[0, 37, 8], [200, 1, 63]], 2, 4, 8, 4, 16, False, seed=3)
    want = oracle(*map(np.asarray, given), window=90, cap=200)
    np.testing.assert_allclose(xla.scores(*given, cap=200, window=90, config=xla.Config(block)), want, atol=5e-6)


@pytest.mark.parametrize("impl", (*api.IMPLEMENTATIONS, "native"))
def test_slots_beyond_cap_are_left_out(impl):
    given = operands([[30, 7]], 2, 1, 8, 4, 16, False)
    full, part = (codebook_scores(*given, cap=cap, impl=impl) for cap in (40, 12))
    np.testing.assert_allclose(full[..., :12], part, atol=1e-6)
    assert np.isneginf(full[..., 30:]).all() and np.isfinite(full[0, 0, ..., :30]).all()


def test_lengths_are_data():
    traced = []

    @jax.jit
    def run(*given):
        traced.append(1)
        return codebook_scores(*given, cap=300)

    q, codes, book, pos, start, _, q_pos = operands([[300, 40]], 2, 1, 8, 4, 16, False)
    for lengths in ([300, 40], [0, 40], [17, 0], [299, 39]):
        found = run(q, codes, book, pos, start, jnp.array([lengths], jnp.int32), q_pos)
        np.testing.assert_array_equal(np.isfinite(found[0, :, 0, 0]).sum(-1), lengths)
    assert len(traced) == 1


def test_refusals_name_the_way_out():
    q, codes, book, *where = operands([[30, 7]], 2, 1, 8, 4, 16, False)
    with pytest.raises(ValueError, match="xla, reference"):
        codebook_scores(q, codes, book, *where, cap=8, impl="cudnn")
    with pytest.raises(ValueError, match="cap"):
        codebook_scores(q, codes, book, *where, cap=0)
    with pytest.raises(ValueError, match="8 channels"):
        codebook_scores(q, codes[:, :3], book, *where, cap=8)
    with pytest.raises(ValueError, match="uint16"):
        codebook_scores(q, codes, jnp.tile(book, (1, 1, 20, 1)), *where, cap=8)
