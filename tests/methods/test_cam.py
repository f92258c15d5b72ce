"""CaM against its reference, the worked example, the authors' run, its host."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.merge.chance import probability, spread_values
from kvjax.noise import uniform_at
from tests.conftest import ids_of
from tests.held import held
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree
from tests.reference import cam
from tests.reference.golden_methods import load
from tests.reference.softmax import softmax
from tests.reference.test_examples_cam import ROW


def masks(n, i):
    keep = jnp.arange(n)[None, None] != i
    return keep, ~keep


def test_e20():
    keep, evicted = masks(5, 1)
    p = probability(jnp.asarray(ROW, jnp.float32)[None, None], keep, None)
    np.testing.assert_allclose(p[0, 0, 1], 0.1 / (0.7 / 3), rtol=1e-6)
    v = jnp.array([[9.0, 9.0], [2, 4], [1, 0], [0, 1], [7, 7]])[None, None]
    np.testing.assert_array_equal(spread_values(v, keep, evicted, 2)[0, 0, [0, 2, 3, 4]], [[9, 9], [2, 2], [1, 3], [7, 7]])


def test_against_the_reference_on_random_numbers():
    rng = np.random.default_rng(0)
    for n, i, m, over in [(9, 2, 4, None), (9, 2, 4, 3), (20, 15, 8, 16), (6, 5, 2, None), (6, 0, 32, 2)]:
        a, v = rng.random(n).astype(np.float32), rng.normal(size=(n, 3)).astype(np.float32)
        keep, evicted = masks(n, i)
        got = probability(jnp.asarray(a)[None, None], keep, over)[0, 0, i]
        np.testing.assert_allclose(got, cam.probability(a, i, over), rtol=1e-5)
        values = spread_values(jnp.asarray(v)[None, None], keep, evicted, m)[0, 0]
        np.testing.assert_allclose(values, cam.merged_values(v, i, m), atol=1e-6)


def test_one_slot_a_head_is_spread_as_many_are():
    """To the bit: a row whose heads lose one slot each is merged with rows that lose more, or alone."""
    rng = np.random.default_rng(0)
    for m in (1, 3, 40):
        keep, v = jnp.asarray(rng.random((8, 3, 30)) < 0.7), jnp.asarray(rng.normal(size=(8, 3, 30, 5)), jnp.float32)
        lost = jnp.argmax(~keep & jnp.asarray(rng.random(keep.shape) < 0.5), -1, keepdims=True)
        one = (jnp.arange(30) == lost) & ~keep
        beside = jnp.concatenate([one, ~keep])
        alone = jax.jit(spread_values, static_argnums=3)(v, keep, one, m)
        together = jax.jit(spread_values, static_argnums=3)(jnp.tile(v, (2, 1, 1, 1)), jnp.tile(keep, (2, 1, 1)), beside, m)
        np.testing.assert_array_equal(alone, together[:8])
        assert one.any() and (beside.sum(-1) > 1).any() and (np.asarray(alone) != np.asarray(v)).any()


def test_merging_while_decoding_alone(lm):
    """A prompt that its host cuts keeps its values; decoded on by CaM they grow."""
    policy = kvjax.methods.cam(budget=24)
    host = policy.replace(merge=kvjax.merge.Drop())
    pre = kvjax.prefill(lm, ids_of(60), needs=policy)
    cut, merged = (kvjax.compress(pre, p) for p in (host, policy))
    for layer in range(3):
        at = np.asarray(cut.kept(layer)[0][0])
        np.testing.assert_array_equal(held(cut, policy.encode, layer, 0, 0)[1], np.asarray(pre.rows[0].v[layer])[0, 0, at])
    assert not np.array_equal(held(merged, policy.encode, 0, 0, 0)[1], held(cut, policy.encode, 0, 0, 0)[1])
    ours, plain = (kvjax.decode(lm, cut, p, max_new_tokens=8, stop=()).cache for p in (policy, host))
    np.testing.assert_array_equal(ours.kept(0)[0][0], plain.kept(0)[0][0])
    assert not np.array_equal(held(ours, policy.encode, 0, 0, 0)[1], held(plain, policy.encode, 0, 0, 0)[1])


def test_edges_of_the_ratio():
    for a, want in [([0.0, 0.0], 0), ([0.1, 0.0], 1)]:
        assert probability(jnp.asarray(a)[None, None], masks(2, 0)[0], None)[0, 0, 0] == want
    assert probability(jnp.ones((1, 1, 1)), masks(1, 0)[0], None)[0, 0, 0] == 0


def test_the_authors_run():
    """The gate and the merge of all 22 evictions, with their draws."""
    data = load("cam")
    start, most, n = int(data["start_size"]), int(data["start_size"] + data["recent_size"]), int(data["n_start"])
    v, acc, merges = data["value"][0, :, :n].astype(np.float32), np.zeros((4, n)), 0
    for t, rows in enumerate(data["attn_padded"]):
        v = np.concatenate([v, data["value"][0, :, n + t : n + t + 1].astype(np.float32)], 1)
        acc = np.pad(acc, ((0, 0), (0, 1))) + rows[:, : v.shape[1]]
        if v.shape[1] > most:
            keep = jnp.broadcast_to(jnp.arange(v.shape[1]) != start, (1, *v.shape[:2]))
            p = probability(jnp.asarray(acc, jnp.float32)[None], keep, 16)
            np.testing.assert_allclose(p[0, :, start], data["merge_prob_clamped"][merges, 0, :, 0], atol=1e-5)
            drawn = jnp.asarray(data["merge_mask_drawn"][merges, 0, :, 0]).astype(bool)[None, :, None]
            v = np.delete(np.asarray(spread_values(jnp.asarray(v)[None], keep, ~keep & drawn, 16))[0], start, 1)
            acc, merges = np.delete(acc, start, 1), merges + 1
    assert merges == 22
    np.testing.assert_allclose(v, data["final_value"][0], atol=1e-5)


class Heads:
    """A layer whose heads draw as kvjax does."""

    def __init__(self, layer, index, *, beta, **options):
        self.index, self.beta = index, beta
        n = layer.k.shape[1]
        pairs = zip(layer.k.astype(float), layer.v.astype(float), strict=True)
        self.heads = [cam.Head(k, v, np.arange(n), **options) for k, v in pairs]
        for head, rows in zip(self.heads, layer.rows(), strict=True):
            head.acc = rows.mean(0).sum(0)

    def step(self, q, k, v, at):
        out = []
        for h, head in enumerate(self.heads):
            head.append(k[h], v[h], at)
            rows = softmax(q[h] @ head.k.T / np.sqrt(16))
            out.append(rows @ head.v)
            head.observe(rows.mean(0))
            victim = head.pos[head.victim(head.acc)]
            draw = float(uniform_at(7, self.index, h, victim))
            head.evict(draw if draw < self.beta else 2.0)
        return np.stack(out)


@pytest.mark.parametrize("heavy, beta", [(False, 1.0), (True, 1.0), (False, 0.0)])
def test_64_tokens(lm, heavy, beta):
    ids, budget = ids_of(40, 5), 40
    victim = cam.least_attended(4, budget // 2) if heavy else cam.oldest_after(4)
    options = {"budget": budget, "victim": victim, "m": 16, "over": 16, "accumulate": True}
    layers = [Heads(x, i, beta=beta, **options) for i, x in enumerate(layers_of(lm, ids))]
    policy = kvjax.methods.cam(budget=budget, heavy=heavy, beta=beta, seed=7)
    cache = agree(lm, ids, policy, layers)
    for i, layer in enumerate(layers):
        for h, head in enumerate(layer.heads):
            np.testing.assert_array_equal(cache.kept(i)[0][h], head.pos)
            start = int(cache.start[i, 0, h])
            order = np.argsort(np.asarray(cache.pos[start : start + budget]))
            np.testing.assert_allclose(np.asarray(cache.v[start : start + budget])[order], head.v, atol=2e-4)


def test_beta_0_is_the_host(lm, pre):
    host = kvjax.methods.streaming_llm(budget=40)
    mine = kvjax.methods.cam(budget=40, beta=0.0)
    a, b = (kvjax.decode(lm, kvjax.compress(pre, p), p, max_new_tokens=12, stop=(), return_logits=True) for p in (host, mine))
    np.testing.assert_allclose(a.logits, b.logits, atol=1e-5)
    assert all((x == y).all() for layer in range(3) for x, y in zip(a.cache.kept(layer)[0], b.cache.kept(layer)[0], strict=True))
