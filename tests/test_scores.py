"""Scorers against their slow transcriptions, on random keys, values and queries, padded rows included."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax import evidence as ev
from kvjax import score
from kvjax.norms import norm
from kvjax.score.expected import expected_mass, gaussian_logits, mean_rotation
from kvjax.score.heads import over_heads
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.crossings.stages import SCORERS
from tests.reference import accumulated, attention, heads, key_diff, key_norm, pooling
from tests.reference import expected_attention as expected
from tests.reference import mean_rotation as rotations
from tests.reference import window_attention as windows

B, H, G, N, D = 2, 2, 3, 40, 16
LENGTHS = [40, 29]


@pytest.fixture(scope="module")
def arrays():
    rng = np.random.default_rng(5)
    draw = lambda *s: rng.normal(size=s).astype(np.float32)  # noqa: E731
    return dict(q=2 * draw(B, H, G, N, D), q_raw=draw(B, H, G, N, D) + 3.0, k=draw(B, H, N, D), v=draw(B, H, N, D))


@pytest.fixture(scope="module")
def view(arrays):
    """Two rows, the second shorter; everything in its padding is NaN."""
    length = jnp.asarray(LENGTHS, jnp.int32)
    pos = jnp.broadcast_to(jnp.arange(N, dtype=jnp.int32), (B, H, N))
    valid = pos < length[:, None, None]
    poison = lambda x: jnp.where(valid[..., None], x, 1e4)  # noqa: E731
    return LayerView(k=poison(arrays["k"]), v=poison(arrays["v"]), pos=pos, valid=valid, length=length)


def seen_of(needs, **data):
    return ev.Evidence(data=data, length=jnp.asarray(LENGTHS, jnp.int32), rope=None)


def window_of(arrays, w):
    rows = [arrays["q"][b, :, :, n - w : n] for b, n in enumerate(LENGTHS)]
    return seen_of({ev.WindowQueries(w)}, window_queries=jnp.asarray(np.stack(rows)))


CASES = [
    (8, score.AvgPool(5), pooling.avg_pool, 5, score.GroupMean(), heads.group_mean),
    (8, score.MaxPool(3), pooling.max_pool, 3, score.GroupMax(), heads.group_max),
    (8, score.MaxPool(7), pooling.max_pool, 7, score.GroupMean(), heads.group_mean),
    (1, score.NoPool(), pooling.no_pool, 1, score.AllMean(), heads.all_mean),
]


@pytest.mark.parametrize(("w", "pool", "ref_pool", "size", "reduce", "ref_reduce"), CASES)
def test_window_attention(arrays, view, w, pool, ref_pool, size, reduce, ref_reduce):
    got = score.WindowAttention(window=w, pool=pool, heads=reduce).score(view, window_of(arrays, w))
    for b, n in enumerate(LENGTHS):
        q, k = arrays["q"][b, :, :, :n], arrays["k"][b, :, :n]
        want = windows.window_attention(q, k, window=w, pool=ref_pool, size=size, reduce=ref_reduce)
        np.testing.assert_allclose(got[b, :, : n - w], want, atol=1e-6, rtol=1e-4)


@pytest.mark.parametrize(
    ("pool", "ref_pool", "size"), [(score.MaxPool(7), pooling.max_pool, 7), (score.AvgPool(5), pooling.avg_pool, 5)]
)
def test_pooled_by_query_head(arrays, view, pool, ref_pool, size):
    got = score.PooledByQueryHead(window=8, pool=pool).score(view, window_of(arrays, 8))
    for b, n in enumerate(LENGTHS):
        rows = attention.attention_rows(arrays["q"][b, :, :, n - 8 : n], arrays["k"][b, :, :n])
        want = windows.scores_by_query_head(rows, window=8, pool=ref_pool, size=size)
        np.testing.assert_allclose(got[b, :, : n - 8], want, atol=1e-6, rtol=1e-4)


def test_window_longer_than_the_prompt_uses_the_queries_there_are(arrays, view):
    short = view.replace(length=jnp.asarray([5, 3], jnp.int32), valid=view.pos < jnp.asarray([5, 3])[:, None, None])
    q = np.zeros((B, H, G, 8, D), np.float32)
    for b, n in enumerate([5, 3]):
        q[b, :, :, 8 - n :] = arrays["q"][b, :, :, :n]
    seen = seen_of({ev.WindowQueries(8)}, window_queries=jnp.asarray(q)).replace(length=short.length)
    got = score.WindowAttention(window=8, pool=score.NoPool()).score(short, seen)
    for b, n in enumerate([5, 3]):
        rows = attention.attention_rows(arrays["q"][b, :, :, :n], arrays["k"][b, :, :n])
        np.testing.assert_allclose(got[b, :, :n], rows.mean(2).mean(1), atol=1e-6)


def test_key_norm(arrays, view):
    got = score.KeyNorm().score(view, seen_of(set()))
    for b, n in enumerate(LENGTHS):
        np.testing.assert_allclose(got[b, :, :n], key_norm.key_norm(arrays["k"][b, :, :n]), rtol=1e-6)


def test_key_difference(arrays, view):
    got = score.KeyDiff().score(view, seen_of(set()))
    for b, n in enumerate(LENGTHS):
        np.testing.assert_allclose(got[b, :, :n], key_diff.key_diff(arrays["k"][b, :, :n]), atol=2e-6)


@pytest.mark.parametrize(("scorer", "ref"), [
    (score.AccumulatedAttention(), accumulated.column_sums), (score.VisibleMeanAttention(), accumulated.visible_mean),
])  # fmt: skip
def test_accumulated_attention(arrays, view, scorer, ref):
    rows = [attention.attention_rows(arrays["q"][b, :, :, :n], arrays["k"][b, :, :n]) for b, n in enumerate(LENGTHS)]
    mass = np.stack([np.pad(accumulated.column_sums(r), ((0, 0), (0, N - r.shape[-1]))) for r in rows]).astype(np.float32)
    start = view.replace(state=scorer.init((B, H, N)))
    done = start.replace(state=scorer.observe(start, seen_of({ev.ColumnSums()}, column_sums=jnp.asarray(mass)[:, :, None])))
    got = scorer.score(done, seen_of(set()))
    for b, r in enumerate(rows):
        np.testing.assert_allclose(got[b, :, : r.shape[-1]], ref(r), rtol=1e-5, atol=1e-6)


class Queries:
    """What a block shows the query moments."""

    def __init__(self, q):
        self.q = self.q_raw = jnp.asarray(q)


class Block:
    """Two rows of queries from position `offset` on."""

    def __init__(self, q, offset, count):
        self.inputs, self.offset, self.count = Queries(q), jnp.asarray(offset, jnp.int32), jnp.asarray(count, jnp.int32)

    def column_sums(self):
        raise AssertionError("moments do not read column sums")


def test_query_moments_fold_in_any_blocks(arrays):
    need, q = ev.QueryMoments(4), arrays["q_raw"]
    shape = ev.Shape(b=B, h=H, g=G, n=N, d=D, e=1, dtype=jnp.float32)
    for edges in ([0, N], [0, 3, 17, N]):
        state = need.empty(shape)
        for lo, hi in zip(edges, edges[1:], strict=False):
            count = np.clip(np.asarray(LENGTHS) - lo, 0, hi - lo)
            state = need.observe(state, Block(q[:, :, :, lo:hi], [lo, lo], count))
        for b, n in enumerate(LENGTHS):
            mean, cov = expected.query_moments(q[b, :, :, :n])
            np.testing.assert_allclose(state.mean[b], mean, atol=1e-5)
            np.testing.assert_allclose(state.covariance()[b], cov, atol=2e-5)


@pytest.mark.parametrize("covariance", [True, False])
@pytest.mark.parametrize("value_norm", [True, False])
def test_expected_attention(arrays, view, covariance, value_norm):
    class Rope:
        """theta_i = 100^(-2i/d), half-split."""

        def cos_sin(self, positions):
            angle = positions[..., None] * 100.0 ** (-2 * jnp.arange(D // 2) / D)
            return jnp.cos(angle), jnp.sin(angle)

        def rotate(self, x, cos, sin):
            raise AssertionError("scores turn no keys here")

    need = ev.QueryMoments(4)
    shape = ev.Shape(b=B, h=H, g=G, n=N, d=D, e=1, dtype=jnp.float32)
    moments = need.observe(need.empty(shape), Block(arrays["q_raw"], [0, 0], LENGTHS))
    seen = seen_of({need}, query_moments_4=moments).replace(rope=Rope())
    scorer = score.ExpectedAttention(future=32, covariance=covariance, value_norm=value_norm, eps=0.02)
    got = scorer.score(view, seen)
    for b, n in enumerate(LENGTHS):
        angles = np.arange(n, n + 32)[:, None] * 100.0 ** (-2 * np.arange(D // 2) / D)
        rbar = np.mean([rotations.rotation(a) for a in angles], 0)
        mean, cov = expected.rotated_moments(*expected.query_moments(arrays["q_raw"][b, :, :, :n]), rbar)
        want = expected.expected_attention(
            mean, cov, arrays["k"][b, :, :n], arrays["v"][b, :, :n], covariance=covariance, value_norm=value_norm, eps=0.02
        )  # fmt: skip
        np.testing.assert_allclose(got[b, :, 4:n], want, rtol=2e-4, atol=1e-7)


def test_expected_attention_worked_example():
    """E10: d = 2, no rotation, mu = (1, 0), Sigma = diag(0, 1)."""
    k = jnp.asarray([[[[2.0, 0], [0, 2], [0, 0], [1, 1]]]])
    v = jnp.asarray([[[[1.0, 0], [2, 0], [1, 0], [0.5, 0]]]])
    mu, sigma = jnp.asarray([[[[1.0, 0.0]]]]), jnp.asarray([[[[[0.0, 0], [0, 1]]]]])
    mass = expected_mass(gaussian_logits(k, mu, sigma), jnp.ones((1, 1, 4), bool))
    np.testing.assert_allclose((mass * norm(v))[0, 0], [0.3941, 0.5210, 0.0958, 0.1248], atol=1e-4)
    plain = expected_mass(gaussian_logits(k, mu, None), jnp.ones((1, 1, 4), bool))
    np.testing.assert_allclose((plain * norm(v))[0, 0], [0.5052, 0.2457, 0.1228, 0.1246], atol=1e-4)


def test_mean_rotation_worked_example():
    class OnePair:
        """theta = 1."""

        def cos_sin(self, positions):
            return jnp.cos(positions[..., None] * 1.0), jnp.sin(positions[..., None] * 1.0)

    got = mean_rotation(OnePair(), jnp.asarray([4], jnp.int32), 2)[0]
    np.testing.assert_allclose(got, [[-0.1850, 0.8579], [-0.8579, -0.1850]], atol=1e-4)


def test_snapkv_worked_example():
    """E8: the pooled sums of two rows keep 0, 1, 2 of the older columns; the mean is half the sum."""
    rows = jnp.asarray([[0.05, 0.30, 0.02, 0.03, 0.20, 0.05], [0.05, 0.20, 0.04, 0.01, 0.10, 0.10]])
    np.testing.assert_allclose(score.AvgPool(3)(rows.sum(0)), [0.2, 0.22, 0.2, 0.13333, 0.16333, 0.15], atol=1e-5)
    np.testing.assert_allclose(score.MaxPool(3)(rows.sum(0)), [0.5, 0.5, 0.5, 0.3, 0.3, 0.3], atol=1e-6)


@pytest.mark.parametrize("pool", [score.AvgPool, score.MaxPool])
@pytest.mark.parametrize("kernel", [0, 2, -3])
def test_pools_need_an_odd_kernel(pool, kernel):
    with pytest.raises(ValueError, match="odd kernel"):
        pool(kernel)


@pytest.mark.parametrize("name", ["KeyNorm", "KeyDiff", "ExpectedAttention", "OwnDistanceSeries", "Pursuit", "ReferenceAttention"])
def test_padding_has_a_derivative(lm, name):
    """Rows of zeros, of which a norm is 0, behind 66 tokens."""
    scorer = SCORERS[name]
    pre = kvjax.prefill(lm, ids_of(66, 1), needs=scorer, chunk=64)
    k, v = jax.tree.map(lambda x: x.at[:, :, 66:].set(0), (pre.rows[0].k, pre.rows[0].v))

    def total(k, v):
        u = kvjax.scores(pre.replace(rows=(pre.rows[0].replace(k=k, v=v),)), scorer)
        return jnp.where(jnp.isfinite(u), u, 0.0).sum()

    for slope in jax.tree.leaves(jax.jit(jax.grad(total, (0, 1)))(k, v)):
        assert jnp.isfinite(slope).all()


def test_norms_are_those_of_numpy_and_flat_at_zero():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(5, 16)), jnp.float32)
    np.testing.assert_array_equal(norm(x), jnp.linalg.norm(x, axis=-1))
    assert norm(jnp.array([3.0, 4.0])) == 5 and norm(jnp.zeros(2)) == 0 and jnp.isnan(norm(jnp.array([jnp.nan])))
    np.testing.assert_allclose(jax.grad(norm)(jnp.array([3.0, 4.0])), [0.6, 0.8], rtol=1e-6)
    assert jax.grad(norm)(jnp.zeros(2)).tolist() == [0, 0]


def test_heads_that_hold_different_tokens_are_reduced_by_token():
    """Tokens 0, 2, 5 and 2, 3, 5: what one head makes of a token the other does not hold counts alone."""
    a = jnp.array([[[[0.1, 0.2, 0.6]], [[-0.4, 0.3, 0.2]]]])
    pos, valid = jnp.array([[[0, 2, 5], [2, 3, 5]]]), jnp.ones((1, 2, 3), bool)
    view = LayerView(k=None, v=None, pos=pos, valid=valid, length=jnp.array([6]), since=jnp.array([5]))
    mean, most = (over_heads(how, a, view) for how in (score.AllMean(), score.AllMax()))
    np.testing.assert_allclose(mean, [[[0.1, -0.1, 0.4], [-0.1, 0.3, 0.4]]], atol=1e-7)
    np.testing.assert_allclose(most, [[[0.1, 0.2, 0.6], [0.2, 0.3, 0.6]]], atol=1e-7)
    alike = view.replace(pos=pos[:, :1].repeat(2, 1))
    for how in (score.AllMean(), score.AllMax()):
        np.testing.assert_array_equal(over_heads(how, a, alike), how(a))
    np.testing.assert_array_equal(over_heads(score.GroupMean(), a, view), a[:, :, 0])


def test_late_attention_is_a_tokens_mean():
    view = LayerView(
        k=None, v=None, pos=jnp.array([[[0, 2], [2, 3]]]), valid=jnp.ones((1, 2, 2), bool), length=jnp.array([4]),
        state=jnp.array([[[0.1, 0.2], [0.4, 0.3]]]), since=jnp.array([3]),
    )  # fmt: skip
    u = score.LateAttention().score(view, ev.Evidence(data={}, length=view.length, rope=None))
    np.testing.assert_allclose(u, [[[0.1, 0.3], [0.3, 0.3]]], atol=1e-7)
