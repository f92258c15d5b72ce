"""D2O against its NumPy transcription: a whole run of prompt and decode steps, then stage by stage."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kvjax
import models
from kvjax.allocate import (
    AttentionVariance,
    ExponentialDecay,
    HeadsMinMax,
    HeadVariance,
    InverseVarianceSoftmax,
    LayersMinMax,
    OverMean,
    Raw,
    Reciprocal,
    Uniform,
    WholeLayers,
)
from kvjax.allocate.variance import column_variance
from kvjax.merge import (
    EMA,
    Average,
    Drop,
    Fixed,
    KeyLikeness,
    NoThreshold,
    OwnLikeness,
    ScatterMean,
    SoftmaxWeights,
    ValueLikeness,
    WeightedNearest,
)
from kvjax.merge.match import match
from kvjax.methods.d2o import d2o
from kvjax.score import AccumulatedAttention
from kvjax.select import HeavyRecent, TopK
from kvjax.view import LayerView, Ranking
from models import llama
from tests.conftest import ids_of, run_stage, toy_config
from tests.reference import d2o as reference
from tests.reference.attention import attention_rows
from tests.reference.softmax import softmax

PROMPT, STEPS = 90, 64
WEIGHTS = {SoftmaxWeights(): reference.softmax_weights, ScatterMean(): reference.scatter_mean, Average(): reference.average}
DENSITY = {LayersMinMax(): reference.layers_minmax, HeadsMinMax(): reference.heads_minmax, Raw(): reference.raw}
SHARES = {
    InverseVarianceSoftmax(): reference.inverse_variance_softmax,
    Reciprocal(): reference.reciprocal,
    ExponentialDecay(): reference.exponential_decay,
}


# ---- A whole run


class SlowRun:
    """One sequence through the model's own layers, with attention, budgets, eviction and merging in NumPy."""

    def __init__(self, lm, prompt, budget, **how):
        self.lm, self.position = lm, len(prompt)
        self.layers, columns = [], []
        self._run(prompt, lambda layer, heads: self._read(heads, columns))
        measured = np.stack([reference.variances(c).reshape(-1) for c in columns])
        shares = reference.inverse_variance_softmax(reference.layers_minmax(measured))
        total = int(budget * len(prompt) + 1e-9) * len(columns)
        self.budgets = reference.layer_budgets(shares, total, len(prompt))
        for layer, slots in zip(self.layers, self.budgets, strict=True):
            layer.budget = int(slots)
            for name, value in how.items():
                setattr(layer, name, value)
            layer.evict()

    def _run(self, ids, attend):
        params, decoder = self.lm.params, self.lm.decoder
        at = jnp.arange(self.position - len(ids), self.position, dtype=jnp.int32)[None]
        x = decoder.embed(params, jnp.asarray([ids], jnp.int32))
        for layer, weights in enumerate(params["layers"]):
            x, _ = decoder.layer(weights, x, at, lambda heads, layer=layer: (attend(layer, heads), None))
        return np.asarray(decoder.unembed(params, x)[0, -1])

    def _read(self, heads, columns):
        q, k, v = (np.asarray(x[0], np.float64) for x in (heads.q, heads.k, heads.v))
        rows = attention_rows(q, k)
        columns.append(rows.sum(2))
        s, pos = rows.sum(2).mean(1), np.arange(k.shape[1])
        self.layers.append(reference.Layer([reference.Head(*x, pos) for x in zip(k, v, s, strict=True)], budget=0))
        return jnp.asarray(np.einsum("hgtn,hnd->hgtd", rows, v)[None], jnp.float32)

    def _step(self, layer, heads):
        held = self.layers[layer]
        q, k, v = (np.asarray(x[0], np.float64) for x in (heads.q[..., 0, :], heads.k[..., 0, :], heads.v[..., 0, :]))
        held.append(k, v, self.position - 1)
        rows = [softmax(q[h] @ head.k.T / np.sqrt(k.shape[-1])) for h, head in enumerate(held.heads)]
        out = np.stack([row @ head.v for row, head in zip(rows, held.heads, strict=True)])
        held.observe([row.mean(0) for row in rows])
        held.evict()
        return jnp.asarray(out[None, :, :, None], jnp.float32)

    def read(self, token):
        self.position += 1
        return self._run([token], self._step)


def toy(seed):
    made = models.random(llama.config(toy_config()), seed=seed)
    sharper = lambda path, x: 2.0 * x if any("proj" in str(p) and str(p)[2] in "qk" for p in path) else x  # noqa: E731
    return made.replace(params=jax.tree_util.tree_map_with_path(sharper, made.params))


def region(cache, layer, h):
    """Positions, keys and values of one head, by position."""
    at = slice(int(cache.start[layer, 0, h]), int(cache.start[layer, 0, h]) + int(cache.length[layer, 0, h]))
    order = np.argsort(np.asarray(cache.pos[at]))
    return [np.asarray(x[at])[order] for x in (cache.pos, cache.k, cache.v)]


RELEASED = dict(share=0.5, beta=0.5, weights=reference.scatter_mean)
RUNS = [
    (0, 0.3, d2o(0.3), {}),
    *(pytest.param(seed, 0.3, d2o(0.3), {}, marks=pytest.mark.slow) for seed in (1, 2)),
    (3, 0.5, d2o(0.5, ratio=(1, 1)).replace(merge=WeightedNearest(EMA(0.5), ScatterMean())), RELEASED),
]


@pytest.mark.parametrize("seed, budget, policy, how", RUNS)
def test_prompt_and_64_steps_follow_the_transcription(seed, budget, policy, how):
    lm, prompt = toy(seed), ids_of(PROMPT, seed)
    slow = SlowRun(lm, prompt, budget, **how)
    cache = kvjax.compress(kvjax.prefill(lm, prompt), policy)
    np.testing.assert_array_equal(cache.lengths[:, 0], np.repeat(slow.budgets[:, None], 2, 1))
    compare(cache, slow)
    out = kvjax.decode(lm, cache, policy, max_new_tokens=STEPS, stop=(), return_logits=True)
    logits = [slow.read(int(token)) for token in out.tokens[0]]
    np.testing.assert_allclose(out.logits[0, 1:], logits[:-1], atol=1e-5)
    np.testing.assert_allclose(out.cache.logits[0], logits[-1], atol=1e-5)
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths)
    compare(out.cache, slow)


def compare(cache, slow):
    np.testing.assert_allclose(cache.memory[0][:, 0], [layer.tau for layer in slow.layers], atol=1e-5)
    for layer, held in enumerate(slow.layers):
        for h, head in enumerate(held.heads):
            pos, k, v = region(cache, layer, h)
            np.testing.assert_array_equal(pos, head.pos)
            np.testing.assert_allclose(k, head.k, atol=1e-5)
            np.testing.assert_allclose(v, head.v, atol=1e-5)


# ---- Merging


def random_view(n, seed=0, b=2, h=3, d=8, dtype=jnp.float32):
    """A view of n slots with a few unused ones, and a keep mask that drops about two thirds of the rest."""
    rng = np.random.default_rng(seed)
    k, v = (jnp.asarray(rng.normal(size=(b, h, n, d)) + 0.5, dtype) for _ in range(2))
    pos = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (b, h, n))
    valid = jnp.asarray(rng.random((b, h, n)) < 0.95)
    keep = valid & jnp.asarray(rng.random((b, h, n)) < 0.3)
    return LayerView(k=k, v=v, pos=pos, valid=valid, length=jnp.full(b, n, jnp.int32)), keep


def unset(merger, b=2):
    return merger.begin(b)


@pytest.mark.parametrize("n", [1, 3, 40, 700])
def test_a_slot_is_matched_as_beside_many(n):
    """To the bit: each head loses one slot, in a batch of its own or beside a row that loses all but every third."""
    x = jax.random.normal(jax.random.key(n), (2, 3, n, 16))
    kept = jnp.broadcast_to(jnp.arange(n) % 3 == 1, (2, 3, n))
    lost = jnp.stack([jnp.broadcast_to(jnp.arange(n) == 0, (3, n)), ~kept[1]])
    together, alone = (jax.jit(match)(*y) for y in ((x, lost, kept), (x[:1], lost[:1], kept[:1])))
    np.testing.assert_array_equal(alone.u[0], together.u[0])
    np.testing.assert_array_equal(alone.target[0, :, 0], together.target[0, :, 0])
    assert (alone.u[0] > -jnp.inf).sum() == (3 if n > 1 else 0)


def merged(merger, view, keep, memory=None):
    scores = jnp.zeros(keep.shape, jnp.float32)
    return jax.jit(lambda m, *x: m(*x))(merger, view, keep, scores, unset(merger) if memory is None else memory)


def slow_merge(view, keep, row, *, compared, weights, threshold, tau=None, beta=0.7):
    """(threshold, merged k and v of every head's kept slots) of one row."""
    stay = [np.flatnonzero(keep[row, h]) for h in range(keep.shape[1])]
    gone = [np.flatnonzero(view.valid[row, h] & ~keep[row, h]) for h in range(keep.shape[1])]
    x = np.asarray(getattr(view, compared)[row], np.float64)
    found = [reference.match(x[h][gone[h]], x[h][stay[h]]) for h in range(len(stay))]
    tau = threshold(np.concatenate([u for _, u in found]), tau, beta)
    out = {}
    for name in "kv":
        rows = np.asarray(getattr(view, name)[row], np.float64)
        out[name] = [
            reference.merge(rows[h][stay[h]], rows[h][gone[h]][u >= tau], j[u >= tau], u[u >= tau], weights)
            for h, (j, u) in enumerate(found)
        ]
    return tau, stay, out


@pytest.mark.parametrize("n", [5, 40, 700])
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("feature", [KeyLikeness(), ValueLikeness(), OwnLikeness()])
def test_merging_follows_the_transcription(n, weights, feature):
    """700 slots take the wide blocks and the narrow ones."""
    view, keep = random_view(n, seed=n)
    got, memory = merged(WeightedNearest(weights=weights, feature=feature), view, keep)
    for row in range(2):
        for i, (compared, blended) in enumerate(feature.features):
            tau, stay, want = slow_merge(view, keep, row, compared=compared, weights=WEIGHTS[weights], threshold=reference.ema)
            np.testing.assert_allclose(memory[i][row], tau, atol=1e-6)
            for array in blended:
                for h, at in enumerate(stay):
                    np.testing.assert_allclose(getattr(got, array)[row, h, at], want[array][h], atol=1e-5)


@pytest.mark.parametrize("n", [60, 700, 1200])
def test_equal_likeness_goes_to_the_lower_slot(n):
    """Of 1200 more than 256 stay: equal ones in two blocks."""
    view, keep = random_view(n)
    kind = np.random.default_rng(n).integers(0, 8, keep.shape)
    evicted = np.asarray(view.valid & ~keep)
    found = jax.jit(match)(jnp.asarray(np.eye(8)[kind], jnp.float32), jnp.asarray(evicted), keep)
    for row, h in np.ndindex(2, 3):
        gone, stay = np.flatnonzero(evicted[row, h]), np.flatnonzero(keep[row, h])
        np.testing.assert_array_equal(found.slot[row, h, : len(gone)], gone)
        for i, slot in enumerate(gone):
            alike = stay[kind[row, h, stay] == kind[row, h, slot]]
            assert found.target[row, h, i] == (alike[0] if len(alike) else stay[0])
            assert found.u[row, h, i] == float(len(alike) > 0)
        assert (np.asarray(found.u[row, h, len(gone) :]) == -np.inf).all()


@pytest.mark.parametrize("threshold, tau", [(NoThreshold(), -np.inf), (Fixed(0.8), 0.8), (EMA(0.6), None)])
def test_thresholds(threshold, tau):
    view, keep = random_view(60)
    before = (jnp.asarray([jnp.nan, 0.9], jnp.float32),)
    got, memory = merged(WeightedNearest(threshold=threshold), view, keep, before)
    for row, old in enumerate([None, 0.9]):
        at = reference.ema if tau is None else lambda best, old, beta: tau
        how = dict(compared="k", weights=reference.softmax_weights, threshold=at, tau=old, beta=0.6)
        want_tau, stay, want = slow_merge(view, keep, row, **how)
        np.testing.assert_allclose(memory[0][row], want_tau, atol=1e-6)
        np.testing.assert_allclose(got.k[row, 1, stay[1]], want["k"][1], atol=1e-5)


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_slots_nobody_joins_keep_their_bits(dtype, weights):
    view, keep = random_view(60, dtype=dtype)
    got, _ = merged(WeightedNearest(threshold=Fixed(np.inf), weights=weights), view, keep)
    np.testing.assert_array_equal(got.k, view.k)
    np.testing.assert_array_equal(got.v, view.v)
    assert got.k.dtype == dtype


def test_a_row_that_evicts_nothing_keeps_its_threshold():
    view, keep = random_view(60)
    keep = keep.at[1].set(view.valid[1])
    for old in (0.4, np.nan):
        got, memory = merged(WeightedNearest(), view, keep, (jnp.asarray([old, old], jnp.float32),))
        np.testing.assert_array_equal(memory[0][1], np.float32(old))
        np.testing.assert_array_equal(got.k[1], view.k[1])
        assert memory[0][0] != old and jnp.isfinite(memory[0][0])


def test_spared_positions_are_not_merged_into():
    view, keep = random_view(60)
    keep = keep | (view.valid & (view.pos < 4))
    everything = WeightedNearest(threshold=NoThreshold())
    changed = lambda m: (np.asarray(merged(m, view, keep)[0].k) != np.asarray(view.k)).any(-1)  # noqa: E731
    assert changed(everything)[..., :4].any()
    spared = changed(everything.replace(spared=4))
    assert not spared[..., :4].any() and spared[..., 4:].any()
    got, memory = merged(WeightedNearest(spared=60), view, keep)
    np.testing.assert_array_equal(got.k, view.k)
    assert np.isnan(memory[0]).all()


def test_a_zero_key_is_dropped_and_an_equal_key_changes_nothing():
    k = jnp.asarray([[[[1.0, 2.0], [0.0, 0.0], [1.0, 2.0], [3.0, -1.0]]]])
    slots = jnp.arange(4, dtype=jnp.int32)[None, None]
    view = LayerView(
        k=k, v=k, pos=slots, valid=jnp.ones((1, 1, 4), bool), length=jnp.full(1, 4, jnp.int32)
    )  # fmt: skip
    keep = jnp.asarray([[[True, False, False, True]]])
    got, memory = merged(WeightedNearest(), view, keep, unset(WeightedNearest(), 1))
    np.testing.assert_allclose(memory[0], [0.5], atol=1e-6)
    np.testing.assert_allclose(got.k[0, 0, [0, 3]], k[0, 0, [0, 3]], atol=1e-6)


# ---- Layer budgets


def ranking_of(lengths, layers, n, seed=0):
    """A ranking whose measures come from random column sums, and those sums."""
    rng = np.random.default_rng(seed)
    c = rng.exponential(size=(layers, len(lengths), 2, 2, n)) * rng.exponential(size=(layers, 1, 1, 1, 1)) * 2
    pos = jnp.broadcast_to(jnp.arange(n, dtype=jnp.int32), (layers, len(lengths), 2, n))
    valid = pos < jnp.asarray(lengths)[:, None, None]
    measured = jnp.stack([column_variance(jnp.asarray(x, jnp.float32), m) for x, m in zip(c, valid, strict=True)])
    return Ranking(scores=jnp.zeros(pos.shape), protected=valid & False, valid=valid, pos=pos, measured=measured), c


@pytest.mark.parametrize("density", DENSITY)
@pytest.mark.parametrize("shares", SHARES)
def test_layer_budgets_follow_the_transcription(density, shares):
    lengths, total = (200, 131), (50, 44)
    ranking, c = ranking_of(lengths, 5, 200)
    budget = run_stage(AttentionVariance(shares=shares, density=density), ranking, jnp.asarray(total, jnp.int32))
    for row, (n, mean) in enumerate(zip(lengths, total, strict=True)):
        measured = np.stack([reference.variances(layer[row, ..., :n]).reshape(-1) for layer in c])
        want = reference.layer_budgets(SHARES[shares](DENSITY[density](measured)), 5 * mean, n)
        np.testing.assert_array_equal(budget[:, row], np.repeat(want[:, None], 2, 1))
        assert len(set(want.tolist())) > 1


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 96), st.floats(0.01, 1.0), st.integers(0, 99))
def test_layer_budgets_sum_exactly(length, share, seed):
    ranking, _ = ranking_of([length], 4, 96, seed)
    total = max(1, int(length * share))
    for allocate in (AttentionVariance(), AttentionVariance(density=Raw()), AttentionVariance(density=Raw(), shares=Reciprocal())):
        budget = np.asarray(run_stage(allocate, ranking, jnp.asarray([total], jnp.int32)))
        assert budget.sum() == 4 * 2 * total and budget.max() <= length
        assert budget.min() >= min(total, max(6, length // 100), length)


def test_the_reciprocal_of_variances_over_their_mean_is_that_of_the_raw_ones():
    """D2O-2 of the worked examples: head means 0.6 and 5.0, shares 0.892857 and 0.107143."""
    variance = jnp.array([[[0.2, 0.6, 1.0]], [[2.0, 3.0, 10.0]]])
    f = OverMean()(variance)
    np.testing.assert_allclose(f[:, 0], np.array([0.6, 5.0]) / 2.8, rtol=1e-6)
    for density in (OverMean(), Raw()):
        w = Reciprocal()(density(variance))[:, 0]
        np.testing.assert_allclose(w / w.sum(), [0.892857, 0.107143], rtol=1e-5)


@pytest.mark.parametrize("length, total", [(96, 24), (60, 7), (96, 96)])
def test_budgets_of_heads_share_as_their_variances_say(length, total):
    ranking, _ = ranking_of([length], 4, 96, 5)
    budget = np.asarray(run_stage(HeadVariance(), ranking, jnp.asarray([total], jnp.int32)))[:, 0]
    assert budget.sum() == 4 * 2 * total and budget.max() <= length and budget.min() >= min(total, 6)
    f = np.asarray(ranking.measured, np.float64)[:, 0].mean(-1)
    weights = np.exp(-(f - f.min()) / (f.max() - f.min() + 1e-6))
    order = np.argsort(-weights.ravel(), kind="stable")
    assert (np.diff(budget.ravel()[order]) <= 0).all()
    if total == 24:
        want = weights / weights.sum() * 8 * total
        inside = (want > 7) & (want < length - 1)
        assert inside.all() and np.abs(budget - want).max() <= 1


def test_whole_layers_keep_everything(pre):
    allocate = WholeLayers(layers=(0, -1), allocate=AttentionVariance())
    lengths = kvjax.compress(pre, d2o(40).replace(allocate=allocate)).lengths
    plain = kvjax.compress(pre, d2o(40)).lengths
    assert (lengths[[0, 2]] == 90).all() and (lengths[1] == plain[1]).all() and not allocate.exact
    with pytest.raises(ValueError, match="layers 0 to 2; got \\[3\\]"):
        kvjax.compress(pre, d2o(40).replace(allocate=WholeLayers(layers=(3,))))


# ---- Who stays


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.sampled_from([(3, 1), (2, 1), (1, 1), (1, 2), (1, 3)]), st.integers(0, 6), st.integers(0, 99))
def test_selection_follows_the_transcription(budget, ratio, sinks, seed):
    share, n = ratio[0] / sum(ratio), 40
    s = np.random.default_rng(seed).integers(0, 12, n).astype(np.float32)
    wide = lambda x, dtype: jnp.asarray(x, dtype)[None, None, None]  # noqa: E731
    pos, slots = wide(np.arange(n), jnp.int32), jnp.full((1, 1, 1), budget, jnp.int32)
    select = HeavyRecent(sinks=sinks, heavy_share=share)
    view = LayerView(k=None, v=None, pos=pos[0], valid=pos[0] >= 0, length=jnp.full(1, n, jnp.int32))
    ranking = Ranking(scores=wide(s, jnp.float32), protected=select.protected(view, slots[0])[None], valid=pos >= 0, pos=pos)
    keep = np.flatnonzero(run_stage(select, ranking, slots)[0, 0, 0])
    np.testing.assert_array_equal(keep, reference.kept(s, *reference.split(budget, share), sinks))


# ---- The method


def test_totals_are_exact_and_lengths_stay(lm):
    pre = kvjax.prefill(lm, [ids_of(90), ids_of(61, 5)])
    for budget, slots in ((0.2, (18, 12)), (25, (25, 25))):
        cache = kvjax.compress(pre, d2o(budget))
        np.testing.assert_array_equal(cache.lengths.sum((0, 2)), [3 * 2 * s for s in slots])
        assert (cache.lengths[..., 0] == cache.lengths[..., 1]).all()
    out = kvjax.decode(lm, cache, d2o(25), max_new_tokens=5, stop=())
    np.testing.assert_array_equal(out.cache.lengths, cache.lengths)


def decoded(lm, pre, policy, tokens=12):
    return kvjax.decode(lm, kvjax.compress(pre, policy), policy, max_new_tokens=tokens, stop=(), return_logits=True)


@pytest.mark.slow
def test_a_threshold_beyond_reach_is_sinks_and_h2o(lm, pre):
    budget = 40
    never = d2o(budget).replace(merge=WeightedNearest(threshold=Fixed(np.inf)), allocate=Uniform())
    h2o = kvjax.Policy(
        score=AccumulatedAttention(), select=TopK(sinks=4, recent_share=0.25), when=kvjax.Every(1), budget=budget
    )  # fmt: skip
    got, want = decoded(lm, pre, never), decoded(lm, pre, h2o)
    np.testing.assert_array_equal(got.logits, want.logits)
    for layer in range(3):
        for a, b in zip(got.cache.kept(layer)[0], want.cache.kept(layer)[0], strict=True):
            np.testing.assert_array_equal(a, b)


def test_sinks_and_recent_survive(lm, pre):
    out = decoded(lm, pre, d2o(0.3))
    for layer in range(3):
        for kept in out.cache.kept(layer)[0]:
            _, recent = reference.split(len(kept))
            assert set(range(4)) | set(range(102 - recent, 102)) <= set(kept.tolist())


@pytest.mark.parametrize("budget", [90, 1.0])
def test_a_budget_of_the_whole_prompt_is_exact(lm, pre, budget):
    once = d2o(budget).replace(when=kvjax.AfterPrefill())
    got, want = decoded(lm, pre, once, 4), decoded(lm, pre, kvjax.methods.full(), 4)
    np.testing.assert_array_equal(got.logits, want.logits)
    assert np.isnan(kvjax.compress(pre, d2o(budget)).memory[0]).all()


D2O = d2o(0.3)
SWITCHES = {
    "uniform": D2O.replace(allocate=Uniform()),
    "reciprocal": D2O.replace(allocate=AttentionVariance(shares=Reciprocal(), density=Raw())),
    "decay": D2O.replace(allocate=AttentionVariance(shares=ExponentialDecay())),
    "heads": D2O.replace(allocate=AttentionVariance(density=HeadsMinMax())),
    "raw": D2O.replace(allocate=AttentionVariance(density=Raw())),
    "whole layers": D2O.replace(allocate=WholeLayers(layers=(0,), allocate=AttentionVariance())),
    "no merging": D2O.replace(merge=Drop()),
    "no threshold": D2O.replace(merge=WeightedNearest(threshold=NoThreshold())),
    "average": D2O.replace(merge=WeightedNearest(weights=Average())),
    "scatter mean": D2O.replace(merge=WeightedNearest(weights=ScatterMean())),
    "values": D2O.replace(merge=WeightedNearest(feature=ValueLikeness())),
    "both": D2O.replace(merge=WeightedNearest(feature=OwnLikeness())),
    "1:3": d2o(0.3, ratio=(1, 3)),
    "sinks": d2o(0.3, sinks=12),
}


def held(cache):
    """What every head holds, as one list of arrays."""
    return [x for layer in range(3) for h in range(2) for x in region(cache, layer, h)]


@pytest.fixture(scope="module")
def plain_cache(pre):
    return held(kvjax.compress(pre, D2O))


@pytest.mark.parametrize("name", SWITCHES)
def test_every_switch_of_the_paper_changes_what_is_held(pre, plain_cache, name):
    got = held(kvjax.compress(pre, SWITCHES[name]))
    assert all(np.isfinite(x).all() for x in got)
    pairs = zip(got, plain_cache, strict=True)
    assert max(1.0 if a.shape != b.shape else np.abs(a.astype(np.float32) - b).max() for a, b in pairs) > 1e-3


def test_beta_changes_what_is_decoded(lm, pre):
    """Its first word comes with the second eviction."""
    one, two = (decoded(lm, pre, d2o(0.3, beta=beta)) for beta in (0.1, 0.9))
    np.testing.assert_array_equal(one.logits[:, 0], two.logits[:, 0])
    assert np.abs(np.asarray(one.logits) - np.asarray(two.logits)).max() > 1e-4


def test_the_merger_under_another_scorer(lm, pre):
    """SnapKV chooses the same slots; what it drops now moves the keys and values it keeps."""
    snapkv = kvjax.methods.snapkv(budget=30, window=8)
    got, want = (kvjax.compress(pre, p) for p in (snapkv.replace(merge=WeightedNearest()), snapkv))
    np.testing.assert_array_equal(got.pos, want.pos)
    assert np.abs(np.asarray(got.k) - np.asarray(want.k)).max() > 1e-2
    out = kvjax.decode(lm, got, snapkv.replace(merge=WeightedNearest()), max_new_tokens=4, stop=(), return_logits=True)
    assert jnp.isfinite(out.logits).all()


@pytest.mark.parametrize("ratio", [(0, 0), (-1, 2), (3,), (1, 1, 1)])
def test_what_is_no_ratio_is_refused(ratio):
    with pytest.raises(ValueError, match="heavy slots to recent ones"):
        kvjax.methods.d2o(ratio=ratio)
