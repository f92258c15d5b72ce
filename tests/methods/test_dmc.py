"""DMC against its transcription: prompts and decode steps, what slots hold, the worked numbers."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import kvjax
from kvjax.gates.decision_neurons import running_sums
from kvjax.prefill import CausalAttention
from kvjax.train.rates import of_ratio, rate_hinge
from tests.conftest import ids_of, toy_config
from tests.methods.simulation import kept_by, same_kept
from tests.reference import dmc as slow
from tests.reference.rotary import frequencies

OFFSET, N, STEPS = 0.3, 90, 64
POLICY = kvjax.methods.dmc(offset=OFFSET)


class Model:
    """The toy model with a head of the transcription in place of each of its own."""

    def __init__(self, lm, offset: float = OFFSET):
        omega = frequencies(toy_config(), 16)
        self.lm, self.heads, self.seen = lm, {at: slow.Head(offset, omega) for at in np.ndindex(3, 2)}, 0

    def read(self, ids) -> np.ndarray:
        """Logits after each token."""
        at = jnp.arange(self.seen, self.seen + len(ids), dtype=jnp.int32)[None]
        x = self.lm.decoder.embed(self.lm.params, jnp.asarray([ids], jnp.int32))
        for layer, weights in enumerate(self.lm.params["layers"]):
            x, _ = self.lm.decoder.layer(weights, x, at, lambda inputs, layer=layer: (self._attend(layer, inputs), None))
        self.seen += len(ids)
        return np.asarray(self.lm.decoder.unembed(self.lm.params, x))[0]

    def _attend(self, layer, inputs):
        q, k, v = (np.asarray(y)[0] for y in (inputs.q_raw, inputs.k_raw, inputs.v))
        out = [
            [self.heads[layer, h].step(q[h, :, t], k[h, t], v[h, t], self.seen + t) for t in range(k.shape[1])] for h in range(2)
        ]
        return jnp.asarray(np.stack(out).swapaxes(1, 2)[None], jnp.float32)

    @property
    def kept(self) -> list:
        return [[np.array(self.heads[layer, h].pos) for h in range(2)] for layer in range(3)]


@pytest.fixture(scope="module")
def decoded(lm, prompt):
    """(after the prompt, after 64 tokens) of kvjax and of the transcription, which reads what kvjax chose."""
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=POLICY), POLICY)
    out = kvjax.decode(lm, cache, POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)
    model = Model(lm)
    first = model.read(prompt)[-1]
    kept = model.kept
    return cache, out, first, kept, model.read(out.tokens[0].tolist()), model


def same_slots(lm, cache, model):
    """Keys, values and the newest slot's sums, slot by slot."""
    for (layer, h), head in model.heads.items():
        start, n = int(cache.start[layer, 0, h]), int(cache.length[layer, 0, h])
        keys = head.rotated(np.stack(head.k), np.array(head.pos))
        np.testing.assert_allclose(cache.k[start : start + n], keys, rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(cache.v[start : start + n], np.stack(head.v), rtol=1e-4, atol=1e-5)
        np.testing.assert_allclose(cache.memory["z"][layer, 0, h], head.z[-1], rtol=1e-5)
        np.testing.assert_allclose(cache.memory["k"][layer, 0, h], head.k[-1] * head.z[-1], rtol=1e-4, atol=1e-5)


def test_prompt_and_64_steps_are_the_transcription(lm, decoded):
    cache, out, first, kept, logits, model = decoded
    same_kept(kept_by(cache), kept)
    np.testing.assert_allclose(out.logits[0, 0], first, atol=2e-5)
    np.testing.assert_allclose(out.logits[0, 1:], logits[:-1], atol=2e-5)
    np.testing.assert_allclose(out.cache.logits[0], logits[-1], atol=2e-5)
    same_kept(kept_by(out.cache), model.kept)
    same_slots(lm, out.cache, model)
    grown = out.cache.lengths - cache.lengths
    assert (grown > 0).all() and (grown < STEPS).all()


def test_only_slots_are_held(lm, decoded):
    cache, _, _, kept, _, _ = decoded
    slots = sum(len(head) for layer in kept for head in layer)
    assert slots < 0.7 * 6 * N and cache.used_nbytes == slots * cache.slot_nbytes and cache.slot_nbytes == 130
    assert sum(x.nbytes for x in jax.tree.leaves(cache.memory)) == 6 * (2 * 16 + 1) * 4
    assert cache.slots < 0.9 * kvjax.compress(kvjax.prefill(lm, ids_of(N)), kvjax.methods.full()).slots


@pytest.mark.slow
def test_a_prompt_in_chunks_and_rows_beside_it(lm, decoded):
    """Two rows, a chunk of 64 at a time, then known tokens: as each alone."""
    cache, out, *_ = decoded
    rows, more = [ids_of(N), ids_of(33, 1)], out.tokens[0, :5].tolist()
    pre = kvjax.prefill(lm, rows, needs=POLICY, chunk=64)
    both = kvjax.compress(pre, POLICY)
    same_kept(kept_by(both), kept_by(cache))
    read = kvjax.extend(lm, both, [more, []], POLICY, return_logits=True)
    np.testing.assert_allclose(read.logits[0, :5], out.logits[0, 1:6], atol=3e-5)
    for layer in range(3):
        for h in range(2):
            np.testing.assert_array_equal(read.cache.kept(layer)[1][h], both.kept(layer)[1][h])
    np.testing.assert_array_equal(read.cache.memory["z"][:, 1], both.memory["z"][:, 1])


def test_a_prompt_read_for_other_policies_too(lm, prompt, decoded):
    """With full attention: the first layer, which attention has not changed, holds the same slots, others what they decide."""
    pre = kvjax.prefill(lm, prompt, needs=POLICY, attention=CausalAttention())
    cache = kvjax.compress(pre, POLICY)
    same_kept(kept_by(cache)[:1], decoded[3][:1])
    for layer in range(3):
        neuron = np.asarray(pre.rows[0].evidence[layer].of(POLICY.score.gate))[0, :, :N]
        for h in range(2):
            np.testing.assert_array_equal(cache.kept(layer)[0][h], [*np.flatnonzero(neuron[h, 1:] <= OFFSET), N - 1])


HARD = [[1, 0], [1.666667, 0.666667], [0, 4]]
SOFT = [[1, 0], [1.769231, 0.769231], [0.288703, 3.472803]]


@pytest.mark.parametrize(("a", "want"), [((0, 1, 0), HARD), ((0, 0.8, 0.3), SOFT)])
def test_t9(a, want):
    k, w = np.float32([[1, 0], [3, 2], [0, 4]]), np.float32([0.5, 0.25, 1])
    sums, z = running_sums(jnp.asarray(k)[None, None], jnp.asarray(w)[None, None], jnp.asarray(a, jnp.float32)[None, None])
    np.testing.assert_allclose((sums / z[..., None])[0, 0], want, atol=1e-6)
    np.testing.assert_allclose(slow.pooled(k, w, np.array(a)), want, atol=1e-6)
    np.testing.assert_allclose(rate_hinge(jnp.asarray([0.6]), of_ratio(4.0)), 0.15, atol=1e-6)


def test_what_is_wrong_is_said(lm, decoded):
    cache = decoded[0]
    with pytest.raises(ValueError, match="RunningMean fits slots to evidence of the prompt"):
        kvjax.compress(kvjax.prefill(lm, ids_of(20), needs=POLICY), POLICY.replace(when=kvjax.Every(1, grows=True)))
    with pytest.raises(ValueError, match="accumulated as they are"):
        coded = POLICY.replace(encode=kvjax.encode.Accumulating(values=kvjax.codec.Cast("bfloat16")))
        kvjax.compress(kvjax.prefill(lm, ids_of(20), needs=POLICY), coded)
    with pytest.raises(ValueError, match="Accumulating reads k, v, z of what a merger keeps, which Drop does not"):
        kvjax.compress(kvjax.prefill(lm, ids_of(20), needs=POLICY), POLICY.replace(merge=kvjax.merge.Drop()))
    with pytest.raises(ValueError, match="does not hold slots as the policy"):
        kvjax.decode(lm, cache.replace(memory=()), POLICY, max_new_tokens=2)
