"""Scores of an observation window in models whose layers have sliding windows: what no query sees gets nothing."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax import allocate, evidence, score
from kvjax.view import LayerView
from tests.conftest import compilations, ids_of, windowed

N, WINDOW = 60, 8


@pytest.fixture(scope="module")
def mixed(lm):
    """Layer 1 sees the last 8 tokens."""
    return windowed(lm, (None, WINDOW, None))


def rows_of(pre, layer: int, w: int) -> np.ndarray:
    """Probabilities [h g w n] of the last w queries, by the formula; the layer's window is 8 in layer 1."""
    row = pre.rows[0]
    q = np.asarray(row.evidence[layer].window_queries(w), np.float64)[0]
    k = np.asarray(row.k[layer], np.float64)[0, :, :N]
    z = np.einsum("hgwd,hnd->hgwn", q, k) / 4
    at, j = N - w + np.arange(w)[:, None], np.arange(N)
    z = np.where((j <= at) & (at - j < (WINDOW if layer == 1 else N)), z, -np.inf)
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def test_mass_is_that_of_the_layers_own_attention(mixed):
    scorer = score.WindowAttention(window=4, pool=score.NoPool())
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs=scorer)
    u = np.asarray(kvjax.scores(pre, scorer))[:, 0, :, :N]
    for layer in range(3):
        np.testing.assert_allclose(u[layer], rows_of(pre, layer, 4).mean((1, 2)), atol=1e-6)
    assert not u[1, :, : N - 4 - WINDOW + 1].any() and u[0, :, :40].all()


def test_all_queries_together_give_the_sums_of_columns(mixed):
    """The same attention as evidence that is summed while the prompt is read."""
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs={evidence.WindowQueries(N), evidence.ColumnSums()})
    u = np.asarray(kvjax.scores(pre, score.WindowAttention(window=N, pool=score.NoPool())))[:, 0, :, :N]
    for layer, seen in enumerate(pre.rows[0].evidence):
        np.testing.assert_allclose(N * u[layer], np.asarray(seen.column_sums())[0, :, :N], atol=1e-4)


SCORERS = {
    "LastQuery": score.LastQuery(),
    "LevelledWindow": score.LevelledWindow(window=4),
    "MeanAndVariance": score.MeanAndVariance(window=4),
    "RawMass": score.RawMass(window=4),
    "RetrievalHeads": score.RetrievalHeads(heads=np.tile(np.array([0, 3], np.int32), (3, 1)), window=4, origin="toy"),
    "WindowAttention": score.WindowAttention(window=4),
}


@pytest.mark.parametrize("name", SCORERS)
def test_what_nobody_sees_scores_nothing(mixed, name):
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs=SCORERS[name])
    u = np.asarray(kvjax.scores(pre, SCORERS[name]))[:, 0, :, :N]
    far = u[1, :, : N - 4 - WINDOW - 2]  # pooling reaches two tokens further
    assert np.ptp(far) == 0 and far.max() <= u[1].min() and np.ptp(u[0, :, :40]) > 0


def test_the_worst_case_counts_the_layers_own_attention(mixed):
    """Its scores have a share by value norms alone beside it; its rows are the attention."""
    scorer = score.WorstCase(window=4)
    row = kvjax.prefill(mixed, ids_of(N, 3), needs=scorer).rows[0]
    view = LayerView.of_prompt(row.length, row.k[1].shape[:3], k=row.k[1], v=row.v[1])
    assert not scorer._rows(view, row.evidence[1])[..., : N - 4 - WINDOW + 1].any()


def test_redundancy_weighs_what_is_seen(mixed):
    scorer = score.Redundancy(window=4, weight=1.0, pool=score.NoPool())
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs=scorer)
    u = np.asarray(kvjax.scores(pre, scorer))[:, 0, :, :N]
    assert not u[1, :, : N - 4 - WINDOW + 1].any() and u[1, :, N - WINDOW : N - 4].all() and u[0, :, :40].all()


def test_slots_that_stay_can_be_read(mixed):
    """Eleven tokens are in reach of the last four queries: SnapKV keeps them, and one that is not."""
    policy = kvjax.methods.snapkv(budget=12, window=4).replace(score=score.WindowAttention(window=4, pool=score.NoPool()))
    cache = kvjax.compress(kvjax.prefill(mixed, ids_of(N, 3), needs=policy), policy)
    for held in cache.kept(1)[0]:
        assert held.tolist() == [0, *range(49, 60)]


@pytest.mark.parametrize(
    "stage", [allocate.LayerPreference(window=4), allocate.OriginShares(window=4), allocate.LazyLayers(sinks=1, recent=7)]
)
def test_allocators_measure_the_layers_own_attention(mixed, stage):
    """As if the keys out of reach were not there."""
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs=stage)
    row = pre.rows[0]
    view = LayerView.of_prompt(row.length, row.k[1].shape[:3], k=row.k[1], v=row.v[1])
    got = stage.measure(view, row.evidence[1])
    without = stage.measure(view, row.evidence[1].replace(window=None))
    p = rows_of(pre, 1, 4)
    if isinstance(stage, allocate.LazyLayers):
        assert got == pytest.approx(p[:, :, -1, :1].sum(-1).mean() + p[:, :, -1, N - 8 : N - 1].sum(-1).mean(), abs=1e-5)
    assert jnp.isfinite(got).all() and got != without


def test_windows_are_data(mixed, lm):
    """Other windows compile no other programs that score, and models without windows have none in their evidence."""
    policy = kvjax.methods.snapkv(budget=12, window=4)
    pre = kvjax.prefill(lm, ids_of(N, 3), needs=policy)
    assert all(seen.window is None for seen in pre.rows[0].evidence)
    pre = kvjax.prefill(mixed, ids_of(N, 3), needs=policy)
    assert [int(seen.window[0]) for seen in pre.rows[0].evidence] == [2**31 - 1, WINDOW, 2**31 - 1]
    kvjax.scores(pre, policy.score)
    other = kvjax.prefill(windowed(lm, (5, None, 9)), ids_of(N, 3), needs=policy)
    jax.block_until_ready(other.rows[0].k)
    with compilations() as seen:
        kvjax.scores(other.replace(decoder=pre.decoder), policy.score)
    assert seen == []


def test_windows_while_decoding(mixed):
    """TOVA drops what the newest query gives least: what it does not see, in a layer with a window."""
    policy = kvjax.methods.tova(budget=12)
    cache = kvjax.compress(kvjax.prefill(mixed, ids_of(N, 3), needs=policy), policy)
    cache = kvjax.extend(mixed, cache, ids_of(12, 4), policy, block=1).cache
    for held in cache.kept(1)[0]:
        assert held[-WINDOW:].tolist() == list(range(N + 12 - WINDOW, N + 12))
