"""Roles, their tables and their budgets: worked examples, the transcription, published base lengths."""

from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvjax
from kvjax.allocate.roles import ExactTotal, Floor, RoleBudgets, base_length, role_budgets
from kvjax.calibrate import roles
from kvjax.score import AvgPool, NoPool
from kvjax.score.last_query import LastQuery
from tests.conftest import ids_of
from tests.reference import heterocache as hc
from tests.reference.attention import attention_rows
from tests.reference.pooling import avg_pool

PAIRS = np.array(
    [[1, 0.6, 0.7, 0.2, 0.1], [0.6, 1, 0.3, 0.2, 0.1], [0.7, 0.3, 1, 0.55, 0.1], [0.2, 0.2, 0.55, 1, 0.3], [0.1, 0.1, 0.1, 0.3, 1]]
)
FIVE = np.array([-1, -1, -1, 0.490197, 0.980393, 1.960781, 0.784315, 0.784315], np.float32).reshape(2, 4)


def test_hc1_sets_and_overlap():
    rows = jnp.asarray([[0.5, 0.03125, 0.0625, 0.25, 0.09375, 0.0625], [0.0625, 0.3125, 0.25, 0.125, 0.125, 0.125]], jnp.float32)
    plain, pooled = roles.important(rows, 2, NoPool()), roles.important(rows, 2, AvgPool(3))
    assert [list(np.flatnonzero(s)) for s in (*plain, *pooled)] == [[0, 3], [1, 2], [0, 1], [1, 2]]
    assert float(roles.overlap(*plain)) == 0.0 and float(roles.overlap(*pooled)) == 0.5


def test_hc3_tables():
    stable = np.array([[0.8, 0.3, 0.6, 0.7, 0.4]])
    tables = roles.tables(stable, PAIRS[None])
    assert tables["role"].tolist() == [[3, 4, 4, 1, 2]] and tables["cluster"].tolist() == [[0, 0, 0, -1, -1]]
    np.testing.assert_allclose(tables["alloc_ratio"], hc.ratios(tables["role"], stable), rtol=1e-6)
    assert {name: x.dtype for name, x in tables.items()} == dict(
        role=np.int8, alloc_ratio=np.float32, stability=np.float32, cluster=np.int32
    )
    assert roles.counts(tables["role"]) == dict(anchor=1, volatile=1, pivot=1, satellite=2)


important = jax.jit(lambda rows: roles.important(rows, 4, AvgPool(3)))


@given(st.integers(0, 2**20), st.integers(2, 5), st.integers(1, 6))
@settings(max_examples=10, deadline=None)
def test_measures_are_the_transcription(seed, h, steps):
    rows = np.random.default_rng(seed).dirichlet(np.full(16, 0.3), size=(2, steps + 1, h)).astype(np.float32)
    sets = important(jnp.asarray(rows))
    overlaps = np.asarray(roles.overlap(sets[:, 1:], sets[:, :1]))[:, :, None]
    np.testing.assert_allclose(roles.stability(overlaps)[0], hc.stability(rows, 4, 3), atol=1e-6)
    pairs = np.asarray(roles.pairwise(sets))[:, :, None]
    each = [[hc.pairwise(step, 4, 3) for step in sample] for sample in rows]
    np.testing.assert_allclose(roles.AtPrefill()(pairs)[0], np.mean(each, 0)[0], atol=1e-6)
    np.testing.assert_allclose(roles.MedianOverSteps()(pairs)[0], np.median(np.mean(each, 0)[1:], 0), atol=1e-6)


@given(st.integers(0, 2**20), st.integers(1, 12), st.floats(0.05, 0.95))
@settings(deadline=None)
def test_clusters_are_the_transcription(seed, heads, density):
    edges = np.random.default_rng(seed).random((heads, heads)) < density
    edges = edges | edges.T
    np.testing.assert_array_equal(roles.star_clusters(edges), hc.star_clusters(edges))


def test_a_head_without_stability_can_be_held_back():
    role, stable = np.full((1, 4), roles.ANCHOR, np.int8), np.array([[0.0, 0.5, 0.5, 0.5]])
    assert roles.alloc_ratio(role, stable)[0, 0] > 3.9
    np.testing.assert_allclose(roles.alloc_ratio(role, stable, least=0.25), hc.ratios(role, np.maximum(stable, 0.25)), rtol=1e-6)


@pytest.mark.parametrize(
    "total, heads, full, n, base",
    [
        (5000, 256, 50, 10_000, 3_786), (65_536, 256, 50, 131_072, 49_629), (3000, 384, 80, 10_000, 1_157),
        (5000, 256, 37, 10_000, 4_155), (65_536, 256, 37, 131_072, 54_463), (60, 8, 3, 100, 36), (300, 8, 3, 1000, 0),
    ],
)  # fmt: skip
def test_published_base_lengths(total, heads, full, n, base):
    whole = lambda x: jnp.asarray([x], jnp.int32)  # noqa: E731
    assert int(base_length(whole(total), whole(full * n), heads=heads, compressed=heads - full)[0]) == base


def budgets(ratio, total, n, rounding):
    whole = lambda x: jnp.asarray([x], jnp.int32)  # noqa: E731
    return role_budgets(jnp.asarray(ratio), whole(total), whole(n), rounding=rounding)[:, 0].reshape(-1).tolist()


def test_hc5_and_hc6_budgets():
    assert budgets(FIVE, 50, 100, Floor()) == [100] * 3 + [9, 19, 39, 15, 15]
    assert budgets(FIVE, 50, 100, ExactTotal()) == [100] * 3 + [10, 19, 39, 16, 16]
    clipped = np.array([-1, -1, -1, 0.10823, 0.216459, 4.328976, 0.173167, 0.173167], np.float32).reshape(2, 4)
    assert budgets(clipped, 75, 100, Floor()) == [100] * 3 + [6, 12, 100, 10, 10]
    assert budgets(clipped, 75, 100, ExactTotal()) == [100] * 3 + [32, 64, 100, 52, 52]


def test_no_allocation_is_the_base_for_all():
    assert budgets(np.where(FIVE < 0, -1, 1).astype(np.float32), 50, 100, Floor()) == [100] * 3 + [20] * 5


@given(st.integers(0, 2**20), st.integers(1, 300), st.floats(0.01, 1.0))
@settings(max_examples=40, deadline=None)
def test_budgets_stay_inside(seed, n, share):
    rng = np.random.default_rng(seed)
    ratio = hc.ratios(rng.choice([1, 2, 3, 4], 12), rng.random(12) ** 3).reshape(3, 4).astype(np.float32)
    full, total = int((ratio < 0).sum()), max(1, int(share * n))
    left = total * 12 - full * n
    if full == 12 or left < 12 - full:
        return
    for rounding, exact in ((Floor(), False), (ExactTotal(), True)):
        got = np.array(budgets(ratio, total, n, rounding))
        assert (got >= 1).all() and (got <= n).all() and (got[ratio.reshape(-1) < 0] == n).all()
        spent, base = got.sum() - full * n, left // (12 - full)
        assert spent <= base * (12 - full) and (not exact or spent == base * (12 - full))


MODEL = SimpleNamespace(layers=2, heads=4, groups=2, head_dim=16, retrofit="")


def test_a_budget_the_full_heads_use_up_is_refused():
    allocate = RoleBudgets(FIVE)
    with pytest.raises(ValueError, match="smallest feasible budget is 38 slots"):
        allocate.check(MODEL, 100, 37)
    allocate.check(MODEL, 100, 38)
    allocate.check(MODEL, 16, 1)
    allocate.check(MODEL, 100, 100)
    with pytest.raises(ValueError, match="one float a KV head"):
        RoleBudgets(FIVE[:1]).check(MODEL, 100, 50)


def test_allocators_are_equal_by_origin():
    one, two = RoleBudgets(FIVE, origin="a"), RoleBudgets(FIVE * 1, origin="a")
    assert one == two and one != one.replace(origin="b") and "0.49" not in repr(one)


def test_last_query_scores(lm, pre):
    row = pre.rows[0]
    policy = kvjax.Policy(score=LastQuery(), budget=20)
    for layer in range(3):
        q = row.evidence[layer].window_queries(1)
        a = attention_rows(np.asarray(q[0], np.float64), np.asarray(row.k[layer][0, :, :90], np.float64))[:, :, 0]
        want = avg_pool(a, 5).max(1)
        kept = kvjax.compress(pre, policy).kept(layer)[0]
        for h in range(2):
            np.testing.assert_array_equal(kept[h], np.sort(hc.ranking(want[h])[:20]))


def test_last_query_pools_the_last_token_too(lm):
    short = kvjax.prefill(lm, ids_of(3, 5))
    assert int(kvjax.compress(short, kvjax.Policy(score=LastQuery(), budget=2)).lengths.sum()) == 2 * 3 * 2
