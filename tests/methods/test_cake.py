"""CAKE: its worked example, its authors' numbers, and the transcription on the toy model, prompt and 64 steps."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.allocate.preference import LayerPreference, cascaded, entropy_and_variance, log_preference
from kvjax.allocate.spread import ClipAndSpread, LargestRemainders, adjust
from kvjax.evidence import Evidence
from kvjax.score import AvgPool, MeanAndVariance, NoPool, WindowAttention
from kvjax.score.window_rows import mean_and_variance, window_rows
from kvjax.view import LayerView, Ranking
from tests.conftest import ids_of
from tests.methods.simulation import decodes_as, kept_by, prompt_arrays, same_kept
from tests.reference import cake
from tests.reference.golden_methods import load

W, BUDGET = 8, 24
BOTH = pytest.mark.parametrize(
    ("share", "reference"), [(LargestRemainders(), cake.exact_budgets), (ClipAndSpread(), cake.release_budgets)]
)


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


# ---- The worked example


@pytest.mark.parametrize(("mean", "budgets"), [(5, [5, 5]), (8, [8, 8]), (9, [9, 9]), (12, [12, 12])])
def test_no_layer_gets_more_than_a_budget_within_the_window(mean, budgets):
    """A window of 8 of equal layers: 5 slots a layer are 5, not the window; what is above it is shared out."""
    yes = jnp.ones((2, 1, 2, 20), bool)
    pos = jnp.broadcast_to(jnp.arange(20, dtype=jnp.int32), yes.shape)
    ranking = Ranking(scores=pos.astype(jnp.float32), protected=~yes, valid=yes, pos=pos, measured=jnp.zeros((2, 1)))
    assert LayerPreference(window=8)(ranking, jnp.asarray([mean], jnp.int32))[:, 0].tolist() == [[b, b] for b in budgets]


@BOTH
@pytest.mark.parametrize(("seen", "budgets"), [([1], [7]), ([1, 1], [6, 6]), ([1, 1, 6], [3, 2, 7])])
def test_e16_budgets(share, reference, seen, budgets):
    most = jnp.full((1, len(seen)), 7, jnp.int32)
    assert share(jnp.asarray([seen], jnp.float32), jnp.asarray([12], jnp.int32), most).tolist() == [budgets]


def test_e16_indicator():
    a = jnp.asarray([[0.2, 0.05], [0.2, 0.15]])[None, None, None]
    mean, variance = mean_and_variance(a, jnp.ones((1, 2), bool))
    np.testing.assert_allclose(variance[0, 0, 0], [0, 0.005], atol=1e-7)
    np.testing.assert_allclose((mean + 200 * variance)[0, 0, 0], [0.2, 1.1], atol=1e-5)


def test_e16_preference():
    a = jnp.asarray([[0.5, 0.3], [0.1, 0.3]])[None, None, None]
    found = entropy_and_variance(a, jnp.ones((1, 2), bool), jnp.ones((1, 1, 2), bool))
    np.testing.assert_allclose([x[0] for x in found], [1.2992, 0.08], atol=5e-5)
    np.testing.assert_allclose(jnp.exp(log_preference(*found, tau1=1.0, tau2=1.0)), 0.10394, atol=5e-6)
    np.testing.assert_allclose(jnp.exp(log_preference(*found, tau1=1.6, tau2=0.4)), 0.0021319, atol=5e-8)


# ---- The authors' numbers


in_steps, adjusted = jax.jit(cascaded, static_argnums=0), jax.jit(adjust)
score, measure = jax.jit(lambda stage, *one: stage.score(*one)), jax.jit(lambda stage, *one: stage.measure(*one))


def test_golden_adjusted_budgets():
    z = load("cake_budgets")
    for row, layers in enumerate(z["layers"].astype(int)):
        with jax.enable_x64(True):
            raw, total = jnp.asarray(z["raw"][row, :layers]), jnp.asarray(int(z["total"][row]))
            got = adjusted(raw, total, jnp.full(layers, int(z["seq_len"][row])))
        np.testing.assert_array_equal(got, z["out"][row, :layers])


def golden_view(z, layer):
    k = jnp.asarray(z[f"L{layer}_key"], jnp.float32)
    view = LayerView.of_prompt(jnp.asarray([120], jnp.int32), k.shape[:3], k=k, v=k)
    q = jnp.asarray(z[f"L{layer}_query_window"].reshape(1, 2, 2, 8, 16), jnp.float32)
    return view, Evidence(data={"window_queries": q}, length=view.length, rope=None)


def test_golden_prompt():
    z = load("cake")
    made = [golden_view(z, layer) for layer in range(4)]
    allocate = kvjax.allocate.LayerPreference(
        window=8, tau1=float(z["tau1"]), tau2=float(z["tau2"]), share=ClipAndSpread(), cascade=True
    )
    log_p = jnp.stack([measure(allocate, *one) for one in made])
    np.testing.assert_allclose(jnp.exp(log_p)[:, 0], z["pref_scores"], rtol=1e-5)
    scores = [score(MeanAndVariance(window=8), *one) for one in made]
    for layer, u in enumerate(scores):
        np.testing.assert_allclose(u[0, :, :112], z[f"L{layer}_evict_score"][0], rtol=1e-5)
    w, total, most = jnp.exp(log_p - log_p.max()).T, jnp.asarray([128], jnp.int32), jnp.full((1, 4), 112, jnp.int32)
    for seen in range(1, 5):
        got = in_steps(ClipAndSpread(), w[:, :seen], total, most[:, :seen])[0]
        np.testing.assert_array_equal(got, z["cascade_budgets"][seen - 1, :seen])
    for layer, b in enumerate(got.tolist()):
        for h in range(2):
            older = np.sort(np.argsort(-np.asarray(scores[layer][0, h, :112]), kind="stable")[:b])
            np.testing.assert_array_equal(np.append(older, np.arange(112, 120)), np.sort(z[f"L{layer}_kept"][h]))


def test_golden_decode():
    z = load("cake_decode")
    k, window = jnp.asarray(z["key"], jnp.float32), int(z["window"])
    q = jnp.asarray(z["query"].reshape(1, 2, 2, 1, 16), jnp.float32)
    view = LayerView.of_prompt(jnp.asarray([60], jnp.int32), k.shape[:3], k=k, v=k)
    seen = Evidence(data={"window_queries": q}, length=view.length, rope=None)
    u = score(WindowAttention(window=1, pool=AvgPool(5), apart=window), view, seen)
    for h in range(2):
        older = np.argsort(-np.asarray(u[0, h, : 60 - window]), kind="stable")[: int(z["hh_size"])]
        np.testing.assert_array_equal(np.append(np.sort(older), np.arange(60 - window, 60)), np.sort(z["kept_sorted"][h]))


# ---- The toy model


def references(layers, allocate):
    a = [cake.older(x.rows(W)) for x in layers]
    preferences = np.array([cake.preference(x, 1.6, 0.4) for x in a])
    return [cake.indicator(x) for x in a], preferences, allocate(preferences, (BUDGET - W) * 3, 90 - W)


def test_scores_and_preferences_of_the_prompt(pre, layers):
    scored = kvjax.score_prompt(pre, kvjax.methods.cake(budget=BUDGET, window=W, tau1=1.6, tau2=0.4)).rows[0]
    scores, preferences, _ = references(layers, cake.exact_budgets)
    for got, want in zip(scored.scores, scores, strict=True):
        np.testing.assert_allclose(got[0, :, : 90 - W], want, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(np.exp(scored.measured[:, 0]), preferences, rtol=1e-5)


@BOTH
def test_what_a_prompt_keeps(pre, layers, share, reference):
    policy = kvjax.methods.cake(budget=BUDGET, window=W, tau1=1.6, tau2=0.4)
    policy = policy.replace(allocate=policy.allocate.replace(share=share))
    scores, preferences, _ = references(layers, reference)
    older = cake.two_phase(scores, preferences, (BUDGET - W) * 3, reference)
    want = [[np.append(kept, np.arange(90 - W, 90)) for kept in layer] for layer in older]
    same_kept(kept_by(kvjax.compress(pre, policy)), want)


@BOTH
@pytest.mark.parametrize("seed", range(4))
def test_cascades(share, reference, seed):
    rng = np.random.default_rng(seed)
    w, u = rng.exponential(size=6) ** 3, [rng.normal(size=(1, 20)) for _ in range(6)]
    cascade = cake.Cascade(36, 20, reference)
    for p, scores in zip(w, u, strict=True):
        cascade.see(scores, p)
    with jax.enable_x64(True):
        got = in_steps(share, jnp.asarray(w)[None], jnp.asarray([36], jnp.int32), jnp.full((1, 6), 20, jnp.int32))
    np.testing.assert_array_equal(got[0], cascade.history[-1])


def test_a_cascade_keeps_what_the_paper_keeps(pre, layers):
    policy = kvjax.methods.cake(budget=BUDGET, window=W, cascade=True)
    policy = policy.replace(allocate=policy.allocate.replace(share=ClipAndSpread()))
    assert not policy.allocate.exact
    same_kept(kept_by(kvjax.compress(pre, policy)), cake.prefill([x.rows(W) for x in layers], BUDGET))


def test_64_steps(lm, pre, layers):
    policy = kvjax.methods.cake(budget=BUDGET, window=W, tau1=1.6, tau2=0.4)
    scores, preferences, budgets = references(layers, cake.exact_budgets)
    older = cake.two_phase(scores, preferences, (BUDGET - W) * 3, cake.exact_budgets)
    recent = np.arange(90 - W, 90)
    rules = [[cake.Decoding(b, W, np.append(kept, recent)) for kept in of] for b, of in zip(budgets, older, strict=True)]
    decodes_as(lm, pre, policy, layers, rules, ids_of(64, 3))


def test_without_variance_it_is_snapkv(pre):
    ours = kvjax.methods.cake(budget=BUDGET, window=W, gamma=0.0).replace(allocate=kvjax.allocate.Uniform())
    same_kept(kept_by(kvjax.compress(pre, ours)), kept_by(kvjax.compress(pre, kvjax.methods.snapkv(budget=BUDGET, window=W))))


def test_rows_are_those_of_the_window_kernel(layers):
    x, where = layers[1], jnp.arange(90, dtype=jnp.int32)[None, None].repeat(2, 1)
    rows = window_rows(
        jnp.asarray(x.q[None, :, :, -W:]), jnp.asarray(x.k[None]), pos=where, valid=where >= 0, length=jnp.asarray([90])
    )
    np.testing.assert_allclose(rows[0], x.rows(W), atol=1e-6)
    plain = WindowAttention(window=W, pool=NoPool())
    assert plain.apart is None and plain.replace(apart=W).window == W
