"""Scorers of the prompt against their references: CUR, non-causal attention, Compactor, Q-Filters, KeyDiff in blocks."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.calibrate.q_filters import q_filters
from kvjax.evidence.chunk_attention import received
from kvjax.evidence.query_spread import Spread
from kvjax.score.compactor import leverage
from kvjax.score.in_blocks import block_wise, chunk_wise
from kvjax.score.leverage import Mean, OfKeys, OfValues, Product
from kvjax.score.query_filter import against, query_direction
from kvjax.select import EachChunk
from tests.methods.inputs import layers_of
from tests.reference import compactor, cur, key_diff_blocks, non_causal, qfilters
from tests.reference.key_diff import key_diff
from tests.reference.top_k import sinks_and_recent, top_k


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return layers_of(lm, prompt)


def scores_of(pre, policy):
    return np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :90]


def same_sets(pre, policy, want, protected=None):
    cache = kvjax.compress(pre, policy)
    for layer, u in enumerate(want):
        for got, row in zip(cache.kept(layer)[0], u, strict=True):
            np.testing.assert_array_equal(got, top_k(row, int(policy.mean_budget(90)), protected))


@pytest.mark.parametrize(
    "window, combine, kind", [(16, Product(), "product"), (7, Mean(), "mean"), (None, OfKeys(), "key"), (16, OfValues(), "value")]
)
def test_cur(pre, layers, window, combine, kind):
    policy = kvjax.methods.cur(budget=33, window=window, combine=combine)
    want = np.stack([cur.cur(x.k, x.v, window=window, kind=kind) for x in layers])
    np.testing.assert_allclose(scores_of(pre, policy), want, atol=1e-5)
    same_sets(pre, policy, want, sinks_and_recent(90, sinks=4))


@pytest.mark.parametrize("chunk, filled", [(32, False), (32, True), (256, False)])
def test_non_causal_attention(lm, prompt, layers, chunk, filled):
    policy = kvjax.methods.non_causal_attention(budget=33, chunk=chunk, filled=filled)
    pre = kvjax.prefill(lm, prompt, needs=policy)
    want = np.stack([non_causal.non_causal(x.q, x.k, x.v, chunk=chunk, filled=filled) for x in layers])
    np.testing.assert_allclose(scores_of(pre, policy), want, atol=2e-5)
    same_sets(pre, policy, want)


def test_non_causal_attention_of_a_prompt_in_parts(lm, layers, prompt):
    policy = kvjax.methods.non_causal_attention(chunk=32)
    parts, whole = (kvjax.prefill(lm, prompt, needs=policy, chunk=chunk) for chunk in (64, None))
    np.testing.assert_allclose(scores_of(parts, policy), scores_of(whole, policy), atol=1e-4)
    with pytest.raises(ValueError, match="run the prompt in parts of a multiple"):
        kvjax.prefill(lm, prompt, needs=kvjax.methods.non_causal_attention(chunk=96), chunk=64)


def test_attention_received_sums_to_the_queries(layers):
    x = layers[0]
    real = jnp.arange(90)[None] < 70
    a = received(jnp.asarray(x.q)[None], jnp.asarray(x.k)[None], real, chunk=16, filled=False)
    np.testing.assert_allclose(a[..., :70].sum(-1), 70.0, rtol=1e-5)
    assert (a[..., 70:] == 0).all()


def test_a19d_leverage():
    x = jnp.array([[[[2.0, 0], [1, 0], [-1, 0], [-2, 1]]]])
    got = leverage(x, jnp.ones((1, 1, 4), bool), sketch=None, jitter=0.0)
    np.testing.assert_allclose(got[0, 0], [0.464286, 0.107143, 0.678571, 0.75], atol=1e-6)


@pytest.mark.parametrize("width", [None, 12])
def test_compactor(lm, prompt, layers, width):
    policy = kvjax.methods.compactor(budget=33, chunk=32, width=width)
    pre = kvjax.prefill(lm, prompt, needs=policy)
    sketch = policy.score.sketch(16)
    sketch = None if sketch is None else np.asarray(sketch, np.float64)
    want = np.stack([compactor.compactor(x.q, x.k, x.k_raw, x.v, removed=1 - 33 / 90, sketch=sketch, chunk=32) for x in layers])
    between = slice(8, 86)
    np.testing.assert_allclose(scores_of(pre, policy)[..., between], want[..., between], atol=3e-5)
    same_sets(pre, policy, want, sinks_and_recent(90, sinks=8, recent=4))


def test_a19e_filters():
    u = against(jnp.array([[[[1.0, 0], [0, 1], [-1, 0], [2, 2]]]]), jnp.array([[0.6, -0.8]]))
    np.testing.assert_allclose(u[0, 0], [-0.6, 0.8, 0.6, 0.4], atol=1e-6)


def test_a_group_has_the_mean_of_its_heads_filters():
    q = jnp.asarray([[4.0, 0], [0, 1]])[None, None]  # one query for each of two heads
    f = query_direction(Spread(total=q, outer=q[..., None] * q[..., None, :]))
    np.testing.assert_allclose(f, [[[-0.5, -0.5]]], atol=1e-6)
    u = against(jnp.asarray([[1, 0], [0, 1.6], [0.9, 0.9]])[None, None], f)
    np.testing.assert_allclose(u[0, 0], [0.5, 0.8, 0.9], atol=1e-6)


def test_qfilters_calibrated_and_of_the_prompt_itself(lm, prompt, pre, layers):
    filters = q_filters(lm, prompt)
    for f, x in zip(filters, layers, strict=True):
        np.testing.assert_allclose(f, qfilters.calibrate(x.q), atol=1e-4)
    want = np.stack([qfilters.q_filters(x.k, f) for x, f in zip(layers, filters, strict=True)])
    for policy in (kvjax.methods.qfilters(budget=33, filters=filters), kvjax.methods.qfilters(budget=33)):
        np.testing.assert_allclose(scores_of(pre, policy), want, atol=1e-4)
        same_sets(pre, policy, want)


def test_filters_of_another_model_are_refused(pre):
    with pytest.raises(ValueError, match=r"wants filters .* \[3, 2, 16\]; got \[2, 2, 16\]"):
        kvjax.compress(pre, kvjax.methods.qfilters(filters=np.zeros((2, 2, 16), np.float32)))


@pytest.mark.parametrize("budget, block", [(24, 16), (40, 7), (0.3, 16), (80, 64)])
def test_keydiff_in_blocks(pre, layers, budget, block):
    policy = kvjax.methods.keydiff(budget=budget, block=block)
    cache = kvjax.compress(pre, policy)
    for i, x in enumerate(layers):
        for got, k in zip(cache.kept(i)[0], x.k, strict=True):
            np.testing.assert_array_equal(got, key_diff_blocks.block_wise(k, budget=policy.mean_budget(90), block=block))


def test_one_block_of_everything_is_keydiff(layers):
    k = jnp.asarray(layers[0].k)[None]
    u = block_wise(k, jnp.ones((1, 2, 90), bool), jnp.array([90]), block=8)
    np.testing.assert_allclose(u[0], key_diff(layers[0].k), atol=1e-5)


def test_keydiff_with_the_prompt_fed_in_blocks(lm, prompt, layers):
    policy = kvjax.methods.keydiff(budget=24, block=16)
    cache = kvjax.compress(kvjax.prefill(lm, prompt[:24], needs=policy), policy)
    cache = kvjax.extend(lm, cache, prompt[24:], policy, block=16).cache
    for got, k in zip(cache.kept(0)[0], layers[0].k, strict=True):
        np.testing.assert_array_equal(got, key_diff_blocks.block_wise(k, budget=24, block=16))


def test_keydiff_in_chunks_of_their_own(pre, layers):
    policy = kvjax.Policy(score=kvjax.score.ChunkKeyDiff(size=32), select=EachChunk(size=32, share=0.3), budget=27)
    cache = kvjax.compress(pre, policy)
    for i, x in enumerate(layers):
        np.testing.assert_allclose(
            chunk_wise(jnp.asarray(x.k)[None], jnp.ones((1, 2, 90), bool), size=32)[0, :, :32], key_diff(x.k[:, :32]), atol=1e-5
        )
        for got, k in zip(cache.kept(i)[0], x.k, strict=True):
            np.testing.assert_array_equal(got, key_diff_blocks.chunk_wise(k, share=0.3, chunk=32))
