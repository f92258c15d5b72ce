"""NaCL: its worked example, and the transcription on the toy model with the library's own noise."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.kernels.select_top import ordered, select_top
from kvjax.noise import gumbel_at
from kvjax.score.proxies import proxies
from kvjax.select.sampled import BestAndSampled, ends, sample
from kvjax.view import Ranking
from tests.methods.simulation import kept_by, prompt_arrays, same_kept
from tests.reference import nacl

U = jnp.asarray([0.30, 0.05, 0.20, 0.02, 0.03, 0.10, 0.15, 0.05, 0.06, 0.04])


@pytest.mark.parametrize(("noise", "drawn"), [({4: 1.0}, 4), ({}, 5)])
def test_e9(noise, drawn):
    at = jnp.arange(10)
    candidates = (at >= 1) & (at < 8)
    top = select_top(jnp.where(candidates, ordered(U), 0)[None], jnp.asarray([2]))[0]
    assert np.flatnonzero(top).tolist() == [2, 6]
    xi = jnp.zeros(10)
    for j, x in noise.items():
        xi = xi.at[j].set(x)
    rest = candidates & ~top
    assert np.flatnonzero(sample(U[None], xi[None], rest[None], jnp.asarray([1]))[0]).tolist() == [drawn]


@pytest.mark.parametrize(("n", "sinks"), [(1000, 256), (100, 256), (100, 2), (40_000, 256), (1, 256)])
def test_the_ends(n, sinks):
    got = ends(jnp.asarray([n], jnp.int32), share=0.01, least=5, sinks=sinks)
    assert tuple(x.item() for x in got) == nacl.protected(n, sinks)
    assert proxies(jnp.asarray([n], jnp.int32), share=0.01, least=5, most=400).item() == nacl.proxies(n)


@pytest.fixture(scope="module")
def layers(lm, prompt):
    return prompt_arrays(lm, prompt)


def test_scores(pre, layers):
    scores = kvjax.score_prompt(pre, kvjax.methods.nacl(budget=20)).rows[0].scores
    for got, x in zip(scores, layers, strict=True):
        np.testing.assert_allclose(got[0, :, :90], nacl.proxy_scores(x.q[:, :, -5:], x.k), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("budget", [18, 40])
def test_what_a_prompt_keeps(pre, layers, seed, budget):
    cache = kvjax.compress(pre, kvjax.methods.nacl(budget=budget, seed=seed, sinks=2))
    drawn, want = int(0.35 * budget + 1e-6), []
    for layer, x in enumerate(layers):
        u = nacl.proxy_scores(x.q[:, :, -5:], x.k)
        noise = np.asarray(gumbel_at(seed, layer, jnp.arange(2)[:, None], jnp.arange(90)))
        counts = dict(sinks=2, recent=3, best=budget - 5 - drawn, sampled=drawn)
        want.append([nacl.kept(u[h], noise[h], **counts) for h in range(2)])
    same_kept(kept_by(cache), want)


def ranked(layers, protected):
    u = jnp.broadcast_to(U, (layers, 1, 2, 10))
    pos = jnp.broadcast_to(jnp.arange(10, dtype=jnp.int32), u.shape)
    return Ranking(scores=u, protected=jnp.isin(pos, jnp.asarray(protected)), valid=pos >= 0, pos=pos)


def test_the_sample_takes_no_slot_of_the_ends():
    """Of 6 slots half would be drawn; 5 ends stay, so one is. Where 6 stay, none is."""
    select = BestAndSampled(sampled=0.5)
    for ends_of in ([0, 1, 7, 8, 9], [0, 1, 6, 7, 8, 9]):
        kept = np.asarray(select(ranked(1, ends_of), jnp.full((1, 1, 2), 6, jnp.int32)))[0, 0]
        assert kept[:, ends_of].all() and kept.sum(-1).tolist() == [6, 6]


def test_draws_belong_to_the_layers_of_the_model():
    """Layers 1 and 2 cut by themselves draw what they draw where all three are cut at once; equal layers draw differently."""
    select, budget = BestAndSampled(sampled=0.8, seed=3), jnp.full((3, 1, 2), 5, jnp.int32)
    whole, part = select(ranked(3, [9]), budget), select(ranked(2, [9]).replace(first=1, of=3), budget[1:])
    np.testing.assert_array_equal(part, whole[1:])
    assert (whole[0] != whole[1]).any()


def test_without_a_sample_it_is_the_best_and_the_ends(pre, layers):
    cache = kvjax.compress(pre, kvjax.methods.nacl(budget=30, sampled=0.0, sinks=2))
    for kept, x in zip(kept_by(cache), layers, strict=True):
        for h, u in enumerate(nacl.proxy_scores(x.q[:, :, -5:], x.k)):
            want = nacl.kept(u, np.zeros(90), sinks=2, recent=3, best=25, sampled=0)
            np.testing.assert_array_equal(kept[h], want)
