"""Neural Garbage Collection as it is served, against a transcription: rounds while decoding, the same blocks for all heads."""

import numpy as np
import pytest

import kvjax
from tests.conftest import ids_of
from tests.eager import attention
from tests.reference.neural_garbage_collection import held_before_rounds, kept

SIZE, WINDOW, INTERVAL, SHARE, STEPS = 4, 5, 16, 0.5, 64
POLICY = kvjax.methods.neural_garbage_collection(share=SHARE, size=SIZE, window=WINDOW, interval=INTERVAL)


class Written:
    """A sequence through the layers, token by token; every `INTERVAL` tokens after the prompt each layer keeps half its blocks."""

    def __init__(self, lm):
        self.lm, self.k, self.v, self.q, self.pos = lm, {}, {}, {}, {}

    def step(self, token, position):
        import jax.numpy as jnp

        decoder, params = self.lm.decoder, self.lm.params
        x, at = decoder.embed(params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[position]], jnp.int32)
        for layer, weights in enumerate(params["layers"]):

            def attend(inputs, layer=layer):
                for held, new in ((self.k, inputs.k), (self.v, inputs.v)):
                    old = held.get(layer, np.zeros((2, 0, 16), np.float32))
                    held[layer] = np.concatenate([old, np.asarray(new)[0]], 1)
                self.pos[layer] = np.append(self.pos.get(layer, np.zeros(0, int)), position)
                self.q[layer] = [*self.q.get(layer, []), np.asarray(inputs.q)[0, :, :, 0]][-WINDOW:]
                out, _ = attention(np.asarray(inputs.q)[0, :, :, 0], self.k[layer], self.v[layer])
                return jnp.asarray(out[None, :, :, None], jnp.float32), None

            x, _ = decoder.layer(weights, x, at, attend)
        return np.asarray(decoder.unembed(params, x))[0, 0]

    def round(self, position):
        """A query of the window sees the slots up to its own place."""
        for layer in self.k:
            rows = np.zeros((2, 2, WINDOW, len(self.pos[layer])))
            for i, q in enumerate(self.q[layer]):
                sees = self.pos[layer] <= position - WINDOW + 1 + i
                rows[:, :, i, sees] = attention(q, self.k[layer][:, sees], self.v[layer][:, sees])[1]
            stay = kept(rows, SIZE, SHARE)
            self.k[layer], self.v[layer], self.pos[layer] = self.k[layer][:, stay], self.v[layer][:, stay], self.pos[layer][stay]


def test_64_steps_with_four_rounds(lm):
    ids, slow = ids_of(38, 4), Written(lm)
    for i, token in enumerate(ids):
        last = slow.step(token, i)
    cache = kvjax.compress(kvjax.prefill(lm, ids, needs=POLICY), POLICY)
    np.testing.assert_allclose(cache.logits[0], last, atol=1e-4)
    out = kvjax.decode(lm, cache, POLICY, max_new_tokens=STEPS, stop=(), return_logits=True)
    for i, token in enumerate(out.tokens[0]):
        np.testing.assert_allclose(out.logits[0, i], last, atol=3e-4)
        last = slow.step(int(token), 38 + i)
        if (i + 1) % INTERVAL == 0:
            slow.round(38 + i)
    for layer in range(3):
        for h in range(2):
            np.testing.assert_array_equal(np.sort(out.cache.kept(layer)[0][h]), slow.pos[layer])


def test_what_is_held_before_a_round_tends_to_the_interval_over_what_goes():
    assert held_before_rounds(256, 0.5, 12) == pytest.approx(511.875)
