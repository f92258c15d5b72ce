"""Attention Matching against its reference, the worked example, the authors' numbers, what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import Evidence, Probed, WindowQueries
from kvjax.merge import MatchedAttention
from kvjax.merge.matched import Frobenius, Plain, Spectral
from kvjax.score import Pursuit, ReferenceAttention
from kvjax.score.reference_attention import TINY, LargestShare, MeanShare, RootMeanSquare
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.methods.growing import Growing
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import attention_matching as am
from tests.reference.golden_methods import load
from tests.reference.test_examples_attention_matching import K, Q, V

FREE = dict(low=TINY, high=float("inf"), steps=0)


def of_head(q, k, v, room=0):
    """(view, evidence) of one head; `room`: slots behind it that hold nothing."""
    need = WindowQueries(len(q))
    k, v = (jnp.pad(jnp.asarray(x, jnp.float32), ((0, room), (0, 0)))[None, None] for x in (k, v))
    evidence = Evidence(data={need.key: jnp.asarray(q, jnp.float32)[None, None, None]}, length=jnp.array([len(q)]), rope=None)
    view = LayerView.of_prompt(jnp.array([k.shape[2] - room]), k.shape[:3], k=k, v=v)
    return need, view.replace(bias=jnp.zeros(k.shape[:3]), seen=evidence), evidence


def scored(score, view, evidence):
    return np.asarray(jax.jit(lambda view, evidence: score.score(view, evidence))(view, evidence))[0, 0]


def fitted(view, keep, **fields):
    """(β, C) of the kept slots of one head, in position order."""
    mask = jnp.isin(jnp.arange(view.k.shape[2]), jnp.asarray(keep))[None, None]
    out, _ = jax.jit(MatchedAttention(**fields).sized(len(keep) + 1))(view, mask, jnp.zeros(mask.shape), ())
    at = np.sort(keep)
    return np.asarray(out.bias[0, 0])[at], np.asarray(out.v[0, 0])[at]


def test_a10():
    for room in (0, 2):
        q = np.pad(Q, ((0, 0), (0, 1)), constant_values=1)  # a query of zeros is none
        need, view, evidence = of_head(q, np.pad(K, ((0, 0), (0, 1))) * np.sqrt(2), V, room=room)
        rms = scored(ReferenceAttention(queries=need), view, evidence)
        np.testing.assert_allclose(rms[:3], [0.334873, 0.334873, 0.435087], atol=1e-6)
        beta, values = fitted(view, [0, 2], queries=need)
        np.testing.assert_allclose(beta, np.log([2.0, 1.0]), atol=1e-5)
        np.testing.assert_allclose(values, [[0.5, 0.5], [2, 2]], atol=1e-5)


@pytest.fixture(scope="module")
def golden():
    data = load("attention_matching")
    return data, *of_head(data["queries"], data["K"], data["V"], room=5)


@pytest.mark.parametrize("name, share", [("max", LargestShare()), ("rms", RootMeanSquare()), ("mean", MeanShare())])
def test_the_authors_highest_keys(golden, name, share):
    data, need, view, evidence = golden
    u = scored(ReferenceAttention(queries=need, share=share), view, evidence)[:128]
    best = np.argsort(-u, kind="stable")[:12]
    np.testing.assert_array_equal(best, data[f"hak_{name}_idx"])
    order = np.argsort(best)
    beta, values = fitted(view, best, queries=need, **FREE)
    np.testing.assert_allclose(beta, data[f"hak_{name}_beta"][order], atol=2e-5)
    np.testing.assert_allclose(values, data[f"hak_{name}_C2"][order], atol=2e-4)


def test_the_authors_box(golden):
    data, need, view, _ = golden
    index = data["hak_box_idx"]
    low, high = float(data["hak_box_lo"]), float(data["hak_box_hi"])
    beta, values = fitted(view, index, queries=need, low=low, high=high, steps=0, direct=True)
    np.testing.assert_allclose(beta, data["hak_box_beta"][np.argsort(index)], atol=2e-5)
    np.testing.assert_array_equal(values, data["hak_box_C2_direct"][np.argsort(index)].astype(np.float32))


@pytest.mark.parametrize("name, scale", [("spectral", Spectral()), ("frobenius", Frobenius()), ("fixed", Plain())])
def test_the_authors_ridge(golden, name, scale):
    data, need, view, _ = golden
    index = data["hak_rms_idx"]
    _, values = fitted(view, index, queries=need, ridge=1e-3, scale=scale, **FREE)
    np.testing.assert_allclose(values, data[f"hak_rms_ridge_{name}_C2"][np.argsort(index)], atol=5e-4)


@pytest.mark.parametrize(
    "name, fields", [("omp1", {}), ("omp2", {"picks": 2}), ("omp_int2", {"refit": 2}), ("omp_norm", {"normalised": True})]
)
def test_the_authors_pursuit(golden, name, fields):
    data, need, view, evidence = golden
    u = scored(Pursuit(queries=need, most=12, **fields), view, evidence)[:128]
    best = np.argsort(-u, kind="stable")[:12]
    np.testing.assert_array_equal(best, data[f"{name}_idx"])
    beta, values = fitted(view, best, queries=need, **FREE)
    np.testing.assert_allclose(beta, data[f"{name}_beta"][np.argsort(best)], atol=2e-5)
    np.testing.assert_allclose(values, data[f"{name}_C2"][np.argsort(best)], atol=2e-4)


def test_a_pursuit_may_weigh_a_key_by_more_than_e_cubed():
    """31 equal keys of which one stays: it weighs 31, as released; the box of the other selection ends at 20.1."""
    need, view, _ = of_head(np.ones((4, 2)), np.zeros((31, 2)), np.ones((31, 2)))
    chosen, pursued = (kvjax.methods.attention_matching(queries=need, pursuit=n).merge for n in (0, 4))
    fields = ("low", "high", "steps", "queries")
    for merge, beta in ((chosen, 3.0), (pursued, np.log(31))):
        got, _ = fitted(view, [5], **{name: getattr(merge, name) for name in fields})
        np.testing.assert_allclose(got, beta, rtol=1e-5)


def test_projected_steps(golden):
    data, need, view, _ = golden
    seen, index = am.look(data["queries"], data["K"]), np.sort(data["hak_rms_idx"])
    for steps in (1, 2, 5):
        beta, _ = fitted(view, index, queries=need, low=1.2, high=3.4, steps=steps)
        np.testing.assert_allclose(np.exp(beta), am.fit_weights(seen, index, low=1.2, high=3.4, steps=steps), rtol=1e-4)


def test_equal_keys_and_fewer_queries_than_keys_stay_finite():
    rng = np.random.default_rng(0)
    k, v, q = np.repeat(rng.normal(size=(4, 4)), 3, 0), rng.normal(size=(12, 4)), rng.normal(size=(3, 4))
    need, view, _ = of_head(q, k, v)
    beta, values = fitted(view, [0, 1, 2, 5, 9], queries=need)
    assert np.isfinite(beta).all()
    wanted = am.look(q, k)
    np.testing.assert_allclose(am.compacted(q, k[[0, 1, 2, 5, 9]], beta, values), wanted.p @ v, atol=2e-3)


def compacted(layer, budget, q, score=am.rms):
    """Reference heads of one layer after queries q [h, g, m, d]."""
    heads = []
    for k, v, of_head in zip(layer.k, layer.v, q, strict=True):
        seen = am.look(of_head.reshape(-1, k.shape[-1]), k)
        at = np.sort(am.highest(seen, budget, score=score))
        beta = np.log(am.fit_weights(seen, at, steps=2))
        heads.append((k[at].astype(float), am.fit_values(seen, at, beta, v, ridge=1e-4), beta, at))
    return heads


def check(cache, made, budget):
    for i, layer in enumerate(made):
        for h, (_, v, beta, at) in enumerate(layer):
            np.testing.assert_array_equal(cache.kept(i)[0][h][:budget], at)
            start = int(cache.start[i, 0, h])
            np.testing.assert_allclose(cache.bias[start : start + budget], beta, atol=2e-4)
            np.testing.assert_allclose(cache.v[start : start + budget], v, atol=2e-3)


def test_prompt_and_64_tokens(lm):
    """The prompt's last 40 queries; values of a well-posed fit."""
    ids, budget = ids_of(60, 5), 16
    policy = kvjax.methods.attention_matching(budget=budget, queries=WindowQueries(40), ridge=1e-4)
    made = [compacted(x, budget, x.q[:, :, -40:]) for x in layers_of(lm, ids)]
    held = [Growing([h[0] for h in x], [h[1] for h in x], [h[2] for h in x]) for x in made]
    cache = agree(lm, ids, policy, held, atol=2e-3)
    check(cache, made, budget)


def test_queries_of_another_text(lm):
    ids, other, budget = ids_of(60, 5), ids_of(40, 9), 16
    queries = WindowQueries(32)
    pre = kvjax.probe(lm, kvjax.prefill(lm, ids, needs={queries}), other, {queries})
    policy = kvjax.methods.attention_matching(budget=budget, queries=Probed(queries), ridge=1e-4)
    cache = kvjax.compress(pre, policy)
    whole = layers_of(lm, ids + other)
    made = [compacted(a, budget, b.q[:, :, -32:]) for a, b in zip(layers_of(lm, ids), whole, strict=True)]
    check(cache, made, budget)
    dense = kvjax.compress(pre, kvjax.methods.full())
    assert cache.used_nbytes < 0.3 * dense.used_nbytes and cache.nbytes < dense.nbytes


def test_no_bias_and_values_as_they_are_is_eviction(lm, pre):
    policy = kvjax.methods.attention_matching(budget=40, queries=WindowQueries(16), direct=True)
    mine = policy.replace(merge=policy.merge.replace(low=1.0, high=1.0))
    host = policy.replace(merge=kvjax.merge.Drop())
    a, b = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=8, stop=(), return_logits=True) for p in (mine, host))
    np.testing.assert_allclose(a.logits, b.logits, atol=1e-5)


def test_while_decoding_it_is_refused(pre):
    policy = kvjax.methods.attention_matching(budget=40, queries=WindowQueries(16)).replace(when=kvjax.Every(1))
    with pytest.raises(ValueError, match="MatchedAttention fits slots to evidence of the prompt"):
        kvjax.compress(pre, policy)
