"""LagKV against its reference: the prompt, 64 decoded tokens, the worked example."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.evidence import Evidence
from kvjax.score import LagSpread
from kvjax.score.lag import block_scores, spread
from kvjax.select import BlockShare
from kvjax.view import LayerView, Ranking
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree, attend
from tests.reference import lagkv
from tests.reference.test_examples_lagkv import KEYS, VALUES
from tests.reference.top_k import top_k

NOTHING = Evidence(data={}, length=jnp.array([8]), rope=None)


def view_of(k, v):
    return LayerView.of_prompt(jnp.array([k.shape[1]]), (1, *k.shape[:2]), k=jnp.asarray(k)[None], v=jnp.asarray(v)[None])


def test_a4_spreads_and_block_scores():
    blocks = jnp.asarray(KEYS[0, 1:7].reshape(3, 2, 2), jnp.float32)
    of_blocks = spread(blocks, jnp.ones((3, 2), bool), 0.0)
    np.testing.assert_allclose(of_blocks[:2], [[0.707107, 1.178511], [0.707107, 2.12132]], atol=1e-6)
    s_k = block_scores(blocks, jnp.ones((3, 2), bool), 0.0)
    np.testing.assert_allclose(s_k[:2], [[0.384284, 0.615716], [0.19557, 0.80443]], atol=1e-6)


@pytest.mark.parametrize("cross", [False, True])
def test_a4_kept_sets(cross):
    view = view_of(KEYS.astype(np.float32), VALUES.astype(np.float32))
    u = LagSpread(sinks=1, lag=2, cross=cross).score(view, NOTHING)
    if not cross:
        np.testing.assert_allclose(jnp.minimum(u[0], 1), [[1, 0, 0.5, 0, 0.5, 1, 1, 1]])
    select = BlockShare(sinks=1, lag=2, share=0.5)
    ranking = Ranking(u[None], select.protected(view, jnp.array([[4]]))[None], view.valid[None], view.pos[None])
    assert np.flatnonzero(select(ranking, jnp.array([[[4]]]))[0, 0, 0]).tolist() == [0, 2, 4, 5, 6, 7]
    for slots, kept in [(6, [0, 2, 4, 5, 6, 7]), (4, [0, 5, 6, 7])]:
        ranking = ranking.replace(protected=jnp.zeros_like(ranking.protected))
        stays = kvjax.select.TopK()(ranking, jnp.array([[[slots]]]))
        assert np.flatnonzero(stays[0, 0, 0]).tolist() == kept


@pytest.mark.parametrize("sinks, lag, cross", [(4, 8, False), (4, 8, True), (3, 16, False), (5, 40, True), (4, 64, False)])
def test_the_prompt(lm, prompt, pre, sinks, lag, cross):
    policy = kvjax.methods.lagkv(budget=70, sinks=sinks, lag=lag, cross=cross)
    scored, cache = kvjax.score_prompt(pre, policy), kvjax.compress(pre, policy)
    for i, layer in enumerate(layers_of(lm, prompt)):
        want = lagkv.press_scores(layer.k, layer.v, sinks=sinks, lag=lag, cross=cross)
        got, n = np.asarray(scored.rows[0].scores[i, 0, :, :90]), 90
        if n >= sinks + 2 * lag:
            np.testing.assert_allclose(np.minimum(got, 1), want, atol=1e-5)
        ends = want >= 1 if n >= sinks + 2 * lag else np.zeros((2, n), bool)
        for h, u in enumerate(want):
            np.testing.assert_array_equal(cache.kept(i)[0][h], top_k(u, 70, ends[h] | (np.arange(n) < sinks)))


def test_a_small_budget_keeps_sinks_and_recent_tokens(pre):
    for kept in kvjax.compress(pre, kvjax.methods.lagkv(budget=20, sinks=4, lag=16)).kept(0)[0]:
        assert kept.tolist() == [0, 1, 2, 3, *range(74, 90)]


class Recursive:
    """A layer of the official cache: a step attends to everything, then blocks are cut."""

    def __init__(self, layer, **options):
        self.cache = lagkv.lag_cache(2, 16, **options)
        self.cache.append(layer.k, layer.v)
        self.cache.compress()

    def step(self, q, k, v, at):
        self.cache.append(k[:, None], v[:, None])
        out = np.stack([attend(x, head.k, head.v) for x, head in zip(q, self.cache.heads, strict=True)])
        self.cache.compress()
        return out


@pytest.mark.parametrize("sinks, lag, ratio", [(4, 8, 0.5), (6, 16, 0.25)])
def test_recursive_over_the_prompt_and_64_tokens(lm, prompt, sinks, lag, ratio):
    policy = kvjax.methods.lagkv(budget=ratio, sinks=sinks, lag=lag, recursive=True)
    held = [Recursive(layer, sinks=sinks, lag=lag, ratio=ratio) for layer in layers_of(lm, prompt)]
    cache = kvjax.compress(kvjax.prefill(lm, prompt), policy)
    for i, layer in enumerate(held):
        for got, head in zip(cache.kept(i)[0], layer.cache.heads, strict=True):
            np.testing.assert_array_equal(got, head.pos)
    cache = agree(lm, prompt, policy, held)
    for i, layer in enumerate(held):
        for got, head in zip(cache.kept(i)[0], layer.cache.heads, strict=True):
            np.testing.assert_array_equal(got, head.pos)


def test_recursive_wants_a_share():
    with pytest.raises(ValueError, match="a share of every block"):
        kvjax.methods.lagkv(budget=64, recursive=True)
