"""R-KV against its reference, the worked example, the authors' numbers."""

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.score import MaxPool
from kvjax.score.redundancy import FirstColumn, LastDuplicate, LastOrFirst, column_similarity, mixed, older_attention, redundancy
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import rkv
from tests.reference.golden_methods import grouped, load
from tests.reference.test_examples_rkv import KEYS, SEEN
from tests.reference.top_k import top_k

ALL = jnp.ones((1, 1, 6), bool)


@pytest.mark.parametrize("forgive, kept", [(LastOrFirst(), [1, 4, 5]), (LastDuplicate(), [0, 4, 5])])
def test_a8(forgive, kept):
    k = jnp.asarray(KEYS, jnp.float32)[None, None]
    means = column_similarity(k, ALL, tau=0.5, forgive=forgive)[0, 0]
    np.testing.assert_allclose(means[1:4], [-1 / 6] * 3, atol=1e-6)
    u = mixed(jnp.asarray(SEEN), redundancy(k, ALL, tau=0.5, forgive=forgive)[0, 0, :5], 0.1)
    assert [*top_k(np.asarray(u), 2), 5] == kept


@pytest.mark.parametrize("case, forgive", [(0, LastOrFirst()), (1, LastOrFirst()), (2, FirstColumn()), (3, LastOrFirst())])
def test_the_authors_numbers(case, forgive):
    data = load("rkv")
    k, q = (jnp.asarray(x, jnp.float32)[None] for x in (data["key"][0], grouped(data["query_window"][0], 2)))
    older = jnp.broadcast_to(jnp.arange(120) < 112, (1, 2, 120))
    u_r = redundancy(k, jnp.ones_like(older), tau=0.5, forgive=forgive)
    np.testing.assert_allclose(u_r[0], data[f"c{case}_similarity"], atol=1e-6)
    u = mixed(older_attention(q, k, older, pool=MaxPool(int(data["kernel"]))), u_r, data[f"c{case}_mix_lambda"])[0, :, :112]
    np.testing.assert_allclose(u, data[f"c{case}_final_score"][0], atol=1e-6)
    ours = rkv.kept(np.asarray(u), budget=int(data["budget"]), window=8)
    np.testing.assert_array_equal(ours, np.sort(data[f"c{case}_kept_all"], axis=1))


def held(layers, ids, *, budget, window):
    made = []
    for x in layers:
        layer = rkv.Layer(x.k, x.v, np.tile(np.arange(len(ids)), (2, 1)), budget, window)
        layer.ring = [x.q[:, :, t] for t in range(len(ids) - window, len(ids))]
        layer._cut()
        made.append(layer)
    return made


class Every8:
    """Cuts at every 8th token."""

    def __init__(self, layer, start):
        self.layer, self.start = layer, start

    def step(self, q, k, v, at):
        return self.layer.step(q, k, v, at, cut=(at + 1 - self.start) % 8 == 0)


def test_prompt_and_64_tokens(lm):
    ids = ids_of(60, 5)
    policy = kvjax.methods.rkv(budget=24, window=4, interval=8)
    layers = layers_of(lm, ids)
    pre = kvjax.prefill(lm, ids)
    got = np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :56]
    np.testing.assert_allclose(got, np.stack([rkv.scores(x.q[:, :, -4:], x.k, window=4) for x in layers]), atol=1e-5)
    simulated = held(layers, ids, budget=24, window=4)
    cache = kvjax.compress(pre, policy)
    for i, layer in enumerate(simulated):
        np.testing.assert_array_equal(np.stack(cache.kept(i)[0]), layer.pos)
    cache = agree(lm, ids, policy, [Every8(layer, 60) for layer in simulated])
    for i, layer in enumerate(simulated):
        np.testing.assert_array_equal(np.stack(cache.kept(i)[0]), layer.pos)


def test_a_pinned_prompt_stays(lm):
    policy = kvjax.methods.rkv(budget=40, window=4, interval=4, pin_prompt=True)
    cache = kvjax.compress(kvjax.prefill(lm, ids_of(20, 3)), policy)
    cache = kvjax.extend(lm, cache, ids_of(48, 4), policy, block=1).cache
    for layer in range(3):
        for kept in cache.kept(layer)[0]:
            assert set(range(20)) | set(range(64, 68)) <= set(kept.tolist()) and len(kept) == 40
