"""TriAttention against its reference, and the worked example."""

from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.calibrate.query_pairs import query_pairs
from kvjax.score.distance_series import ahead, beside, standardised
from tests.conftest import ids_of
from tests.methods.inputs import layers_of
from tests.methods.simulate import agree, attend
from tests.reference import triattention
from tests.reference.rotary import rotate
from tests.reference.test_examples_triattention import KEYS, MU, OFFSETS, PLACES, M


def channels(x):
    """Complex pairs as halves of channels, float32."""
    return jnp.asarray(np.concatenate([x.real, x.imag], -1), jnp.float32)


@pytest.mark.parametrize(
    "largest, corrected, want",
    [
        (False, True, [0.554454, 2.434734, 0.861082]),
        (True, True, [2.929465, 5.906351, 1.476588]),
        (False, False, [2.554454, 6.434734, 1.861082]),
    ],
)
def test_a9(largest, corrected, want):
    import models.rope

    rope = models.rope.Rope((1.0,))
    k = jnp.asarray(rotate(np.asarray(channels(KEYS), np.float64), PLACES, np.array([1.0])), jnp.float32)[None, None]
    mu, m = channels(MU)[None, None, None], jnp.asarray(M, jnp.float32)[None, None, None]
    u = ahead(mu, k, rope=rope, at=jnp.array([8]), offsets=tuple(OFFSETS.tolist()), largest=largest)
    np.testing.assert_allclose((u + beside(mu, m, k, corrected=corrected))[0, 0, 0], want, atol=2e-6)


def test_z_scores():
    u = np.random.default_rng(0).normal(size=(2, 3, 9)).astype(np.float32)
    got = standardised(jnp.asarray(u)[None], jnp.ones((1, 2, 9), bool))[0]
    np.testing.assert_allclose(got, triattention.standard(u.astype(float)), atol=1e-5)


def test_z_scores_leave_a_pinned_prompt_out():
    """Two heads of a group, two tokens of the prompt, three decoded, of which the first leads; with the prompt it is the second."""
    u, among = jnp.asarray([[9.0, 9, 1, 0, 0], [0, 0, 0, 2, 1]])[None, None], jnp.arange(5)[None, None] >= 2
    z = standardised(u, among).max(2)[0, 0]
    np.testing.assert_allclose(z[2:], [1.4142, 1.2247, 0], atol=1e-4)
    np.testing.assert_allclose(z[2:], triattention.standard(np.asarray(u[0, 0], float), 2).max(0)[2:], atol=1e-5)
    assert int(standardised(u, among | True).max(2)[0, 0, 2:].argmax()) == 1


@dataclass
class Held:
    """A layer that is cut at every 8th token, by statistics that are handed in."""

    k: np.ndarray
    v: np.ndarray
    pos: np.ndarray
    mu: np.ndarray
    m: np.ndarray
    omega: np.ndarray
    budget: int
    prompt: int
    z: bool = False

    def scores(self):
        at = int(self.pos.max()) + 1
        out = []
        for k, pos, mu, m in zip(self.k, self.pos, self.mu, self.m, strict=True):
            raw = triattention.pairs(rotate(k.astype(float), -pos, self.omega))
            out.append([triattention.score(a, b, raw, pos, at, self.omega) for a, b in zip(mu, m, strict=True)])
        prompt = self.prompt if self.k.shape[1] > self.prompt else 0
        return triattention.standard(np.array(out), prompt) if self.z else np.array(out)

    def step(self, q, k, v, at):
        self.k, self.v = np.concatenate([self.k, k[:, None]], 1), np.concatenate([self.v, v[:, None]], 1)
        self.pos = np.concatenate([self.pos, np.full((2, 1), at)], 1)
        out = np.stack([attend(*x) for x in zip(q, self.k, self.v, strict=True)])
        if (at + 1 - self.prompt) % 8 == 0 and self.k.shape[1] > self.budget:
            index = triattention.per_layer_per_head(self.scores(), budget=self.budget, prompt=self.prompt)
            self.k, self.v = (np.take_along_axis(x, index[..., None], 1) for x in (self.k, self.v))
            self.pos = np.take_along_axis(self.pos, index, 1)
        return out


@pytest.mark.parametrize("z", [False, True])
def test_calibrated_scores_and_64_tokens(lm, z):
    ids = ids_of(20, 5)
    mean, norms = query_pairs(lm, [ids_of(60, 1), ids_of(33, 2)])
    layers, omega = layers_of(lm, ids), np.asarray(lm.decoder.rope.frequencies)
    first, second = layers_of(lm, ids_of(60, 1)), layers_of(lm, ids_of(33, 2))
    held = []
    for i, x in enumerate(layers):
        mu, m = triattention.calibrate(np.concatenate([first[i].q_raw, second[i].q_raw], 2))
        np.testing.assert_allclose(triattention.pairs(mean[i]), mu, atol=1e-5)
        np.testing.assert_allclose(norms[i], m, atol=1e-5)
        held.append(Held(x.k, x.v, np.tile(np.arange(20), (2, 1)), mu, m, omega, 36, 20, z))
    policy = kvjax.methods.triattention(budget=36, interval=8, z=z, mean=mean, norms=norms, origin="toy")
    pre = kvjax.prefill(lm, ids)
    got = np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :20]
    np.testing.assert_allclose(got, np.stack([layer.scores().max(1) for layer in held]), atol=3e-5)
    cache = agree(lm, ids, policy, held)
    for i, layer in enumerate(held):
        np.testing.assert_array_equal(np.stack(cache.kept(i)[0]), layer.pos)


def test_the_first_distance_is_one_beyond_the_token_to_come(lm):
    """Scores of a prompt of 20 tokens at the offset 1 alone: those that the mean query pays at position 21."""
    mean, norms = query_pairs(lm, [ids_of(60, 1)])
    rule = kvjax.score.DistanceSeries(mean=mean, norms=np.linalg.norm(np.stack(np.split(mean, 2, -1)), axis=0), offsets=(1,))
    policy, omega = kvjax.Policy(score=rule, budget=8), np.asarray(lm.decoder.rope.frequencies)
    pre = kvjax.prefill(lm, ids_of(20, 5), needs=policy)
    got = np.asarray(kvjax.score_prompt(pre, policy).rows[0].scores)[:, 0, :, :20]
    for layer, x in zip(range(3), layers_of(lm, ids_of(20, 5)), strict=True):
        paid = np.einsum("hgd,hnd->hgn", rotate(np.asarray(mean[layer], float), np.array(21), omega), x.k)
        np.testing.assert_allclose(got[layer], paid.max(1), atol=3e-5)


def test_shared_sets_are_the_union_cut_by_the_maximum(lm):
    ids = ids_of(60, 5)
    policy = kvjax.methods.triattention(budget=24, shared=True)
    cache = kvjax.compress(kvjax.prefill(lm, ids, needs=policy), policy)
    omega = np.asarray(lm.decoder.rope.frequencies)
    for i, x in enumerate(layers_of(lm, ids)):
        mu, m = triattention.calibrate(x.q_raw)
        rows = Held(x.k, x.v, np.tile(np.arange(60), (2, 1)), mu, m, omega, 24, 0).scores().reshape(4, 60)
        for kept in cache.kept(i)[0]:
            np.testing.assert_array_equal(kept, triattention.union(rows, budget=24))


def test_statistics_of_another_model_are_refused(pre):
    wrong = kvjax.methods.triattention(mean=np.zeros((2, 2, 2, 16)), norms=np.zeros((2, 2, 2, 8)))
    with pytest.raises(ValueError, match=r"\[3, 2, 2, 16\]; got \[2, 2, 2, 16\]"):
        kvjax.compress(pre, wrong)
