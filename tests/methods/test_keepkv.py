"""KeepKV against its reference, the worked example, what it reduces to."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.merge import ByVotes
from kvjax.merge.votes import mean_seen
from kvjax.score.raw_mass import Masses, weighted
from kvjax.view import LayerView
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference.keepkv import GroupHead, Head


def merged(k, v, mass, keep, **fields):
    """A head's slots [n, d] after `ByVotes`; one query saw them with exponentials `mass`."""
    k, v = (jnp.asarray(x, jnp.float32)[None, None] for x in (k, v))
    mass = jnp.asarray(mass, jnp.float32)[None, None]
    view = LayerView.of_prompt(jnp.array([k.shape[2]]), k.shape[:3], k=k, v=v)
    view = view.replace(bias=jnp.zeros_like(mass), scored=Masses(recent=mass[..., None]))
    out, _ = jax.jit(ByVotes(**fields))(view, jnp.asarray(keep)[None, None], mass, ())
    return out


def test_a19b():
    out = merged([[1.0, 0], [0.8, 0.6]], [[0.0, 4], [8, 0]], [2.0, 0.5], [True, False], threshold=0.7, eps=0.0)
    np.testing.assert_allclose(out.k[0, 0, 0], [0.96, 0.12], rtol=1e-6)
    np.testing.assert_allclose(out.v[0, 0, 0], [1.6, 3.2], rtol=1e-6)
    np.testing.assert_allclose([np.exp(out.bias[0, 0, 0]), out.scored.recent[0, 0, 0, 0]], [2, 1.25])
    q = np.linalg.solve(np.array([[1.0, 0], [0.8, 0.6]]), np.log([2.0, 0.5]))
    np.testing.assert_allclose(np.exp(out.bias[0, 0, 0] + out.k[0, 0, 0] @ q), 3.031433, rtol=1e-6)


def test_a_ranking_by_the_last_queries():
    """Two queries' exponentials, the oldest first: what the reference's example has."""
    np.testing.assert_allclose(weighted(jnp.asarray([[1.0, 1], [2, 4], [1, 1], [0, 1]]), 1.2), [2.2, 6.8, 2.2, 1.2], rtol=1e-6)


def test_below_the_threshold_a_slot_is_dropped():
    out = merged([[1.0, 0], [0.8, 0.6]], [[0.0, 4], [8, 0]], [2.0, 0.5], [True, False], threshold=0.81)
    np.testing.assert_array_equal(out.k[0, 0, 0], [1, 0])
    np.testing.assert_array_equal(out.bias, 0)


def test_the_mean_is_over_the_queries_that_could_see_a_slot():
    """Of three queries all, two, one and none."""
    recent = jnp.array([[[[1.0, 2, 3], [0, 1, 3], [0, 0, 5], [0, 0, 0]]]])
    assert mean_seen(recent)[0, 0].tolist() == [2, 2, 5, 0]


def test_what_a_query_could_not_see_does_not_count():
    out = merged([[1.0, 0], [1, 0]], np.zeros((2, 2)), [2.0, 0.0], [True, False], threshold=0.5)
    np.testing.assert_allclose(out.scored.recent[0, 0, 0, 0], 2.0)


class Heads:
    def __init__(self, layer, **fields):
        pairs = zip(layer.k.astype(float), layer.v.astype(float), strict=True)
        self.heads = [GroupHead(k.copy(), v.copy(), **fields) for k, v in pairs]
        for head, q in zip(self.heads, layer.q.astype(float), strict=True):
            head.start(q)

    def step(self, q, k, v, at):
        return np.stack([head.step(*x) for head, *x in zip(self.heads, q.astype(float), k, v, strict=True)])


def compare(cache, held, budget):
    for i, layer in enumerate(held):
        for h, head in enumerate(layer.heads):
            np.testing.assert_array_equal(cache.kept(i)[0][h], head.pos)
            start = int(cache.start[i, 0, h])
            order = start + np.argsort(np.asarray(cache.pos[start : start + budget]))
            state, seen = cache.state.score, np.nan_to_num(head.seen.T)
            np.testing.assert_allclose(np.exp(cache.bias[order]), head.c, rtol=1e-5)
            np.testing.assert_allclose(cache.k[order], head.k, atol=2e-4)
            np.testing.assert_allclose(cache.v[order], head.v, atol=2e-4)
            np.testing.assert_allclose(state.recent[order], seen, rtol=2e-3, atol=1e-5)


@pytest.mark.parametrize("threshold, newest, n", [(0.5, 1.2, 60), (0.2, 3.0, 60), (0.5, 1.2, 24)])
def test_prompt_and_64_tokens(lm, threshold, newest, n):
    ids, budget = ids_of(n, 5), 26
    fields = dict(budget=budget, threshold=threshold, newest=newest)
    held = [Heads(x, **fields) for x in layers_of(lm, ids)]
    cache = agree(lm, ids, kvjax.methods.keepkv(budget=budget, threshold=threshold, newest=newest), held)
    compare(cache, held, budget)
    assert any((head.c > 2).any() for layer in held for head in layer.heads)


def test_one_query_head_is_the_reference_of_one():
    rng = np.random.default_rng(0)
    k, v, q = rng.normal(size=(3, 40, 4))
    one, group = (cls(k[:10].copy(), v[:10].copy(), budget=9, threshold=0.3, sinks=2, recent=3) for cls in (Head, GroupHead))
    one.start(q[:10])
    group.start(q[None, :10])
    for t in range(10, 40):
        np.testing.assert_allclose(group.step(q[t][None], k[t], v[t])[0], one.step(q[t], k[t], v[t]))
    np.testing.assert_allclose(group.k, one.k)


def test_a_threshold_above_one_only_drops(lm, pre):
    mine = kvjax.methods.keepkv(budget=40, threshold=1.1)
    host = mine.replace(merge=kvjax.merge.Drop())
    a, b = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=12, stop=(), return_logits=True) for p in (mine, host))
    np.testing.assert_allclose(a.logits, b.logits, atol=1e-5)
    assert all((x == y).all() for layer in range(3) for x, y in zip(a.cache.kept(layer)[0], b.cache.kept(layer)[0], strict=True))


def test_another_scorer_is_refused(pre):
    policy = kvjax.methods.keepkv(budget=40).replace(score=kvjax.score.AccumulatedAttention())
    with pytest.raises(ValueError, match="ByVotes reads what RawMass keeps by slot; the scorer is AccumulatedAttention"):
        kvjax.compress(pre, policy)
