"""Heads of the toy model under a transcription whose heads take a number a token beside queries, keys and values."""

from collections.abc import Callable

import numpy as np

from tests.eager import run_steps


class Transcribed:
    """Every head, fed the prompt and then step by step; `values(layer, fields)` are [h, t] of attention inputs by name."""

    def __init__(self, pre, made: Callable, values: Callable, prompt: Callable, length: int = 90):
        self.heads, self.values = {at: made() for at in np.ndindex(3, 2)}, values
        row = pre.rows[0]
        for layer in range(3):
            k, v = np.asarray(row.k[layer])[0, :, :length], np.asarray(row.v[layer])[0, :, :length]
            self.feed(layer, np.zeros((2, 2, length, 16)), k, v, prompt(layer)[:, :length])

    def feed(self, layer, q, k, v, gates):
        return np.stack([self.heads[layer, h].extend(q[h], k[h], v[h], gates[h])[0] for h in range(2)])

    def attend(self, layer, inputs):
        q, k, v = (np.asarray(a)[0] for a in (inputs.q, inputs.k, inputs.v))
        return self.feed(layer, q, k, v, self.values(layer, inputs))[:, :, 0]

    def check_prompt(self, cache):
        """Before any step."""
        self.same_slots(cache)

    def same_slots(self, cache):
        for (layer, h), head in self.heads.items():
            np.testing.assert_array_equal(cache.kept(layer)[0][h], head.held.pos)

    def check_steps(self, lm, out, start: int = 90):
        """The logits after each token, and what is held after the last."""
        want = run_steps(lm, out.tokens[0], start=start, attend=self.attend)
        np.testing.assert_allclose(out.logits[0, 1:], want[:-1], atol=2e-5)
        np.testing.assert_allclose(out.cache.logits[0], want[-1], atol=2e-5)
        self.same_slots(out.cache)


def of_layer(weights: dict, layer: int) -> dict:
    """One layer's weights, float64."""
    if isinstance(weights, dict):
        return {name: of_layer(x, layer) for name, x in weights.items()}
    return np.asarray(weights)[layer].astype(np.float64)
