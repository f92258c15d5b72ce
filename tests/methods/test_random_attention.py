"""Random Attention against its reference: pinned tokens, draws, the worked example."""

import jax.numpy as jnp
import numpy as np

import kvjax
from kvjax.noise import uniform_at
from kvjax.select import TopK
from kvjax.view import Ranking
from tests.conftest import ids_of
from tests.reference import random_attention


def test_a11_kept():
    u = jnp.array([jnp.inf, jnp.inf, 0.2, 0.9, 0.5, 0.7, 0.1, 0.0])[None, None, None]
    pos = jnp.arange(8, dtype=jnp.int32)[None, None, None]
    kept = TopK(recent=1)(Ranking(u, pos == 7, pos >= 0, pos), jnp.array([[[5]]]))
    assert np.flatnonzero(kept[0, 0, 0]).tolist() == [0, 1, 3, 5, 7]


def test_draws_are_uniform_and_differ():
    u = np.asarray(uniform_at(3, jnp.arange(8)[:, None, None], jnp.arange(8)[:, None], jnp.arange(2000)))
    assert np.abs(np.histogram(u, 16, (0, 1))[0] / u.size - 1 / 16).max() < 0.002
    assert np.abs(np.corrcoef(u.reshape(64, -1)) - np.eye(64)).max() < 0.1
    assert (u != np.asarray(uniform_at(4, jnp.arange(8)[:, None, None], jnp.arange(8)[:, None], jnp.arange(2000)))).mean() > 0.99


def test_64_tokens_event_by_event(lm):
    """What every layer and head holds after each event is the reference's choice by the same draws."""
    policy, tokens = kvjax.methods.random_attention(budget=32, recent=4, interval=8, seed=5), ids_of(64, 9)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(20, 3)), policy)
    held = np.broadcast_to(np.arange(20), (3, 2, 20))
    for at in range(0, 64, 8):
        cache = kvjax.extend(lm, cache, tokens[at : at + 8], policy, block=1).cache
        held = np.concatenate([held, np.broadcast_to(np.arange(20 + at, 28 + at), (3, 2, 8))], -1)
        layer, head = np.indices((3, 2))[..., None]
        u = np.asarray(uniform_at(5, layer, head, held, 28 + at))
        index = np.stack([random_attention.kept(x, budget=32, prompt=20, recent=4) for x in u])
        held = np.take_along_axis(held, index, -1)
        for i in range(3):
            np.testing.assert_array_equal(np.stack(cache.kept(i)[0]), held[i])


def test_other_seeds_keep_other_tokens(lm):
    def kept(seed):
        policy = kvjax.methods.random_attention(budget=32, recent=4, interval=8, seed=seed)
        cache = kvjax.compress(kvjax.prefill(lm, ids_of(20, 3)), policy)
        return np.stack(kvjax.extend(lm, cache, ids_of(64, 9), policy, block=1).cache.kept(0)[0])

    assert (kept(1) == kept(1)).all() and (kept(1) != kept(2)).any()
