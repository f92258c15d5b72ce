"""A model that evicts, written out: NumPy attention in the model's own layers, one rule for each KV head of each layer.

The prompt's arrays are dense and causal. Each later token attends to what its KV head holds and to itself; then the rule evicts.
"""

from collections.abc import Callable
from dataclasses import dataclass

import jax.numpy as jnp
import numpy as np

import kvjax
from tests.reference.attention import attention_rows
from tests.reference.decode_head import causal_logits
from tests.reference.softmax import softmax


@dataclass
class LayerArrays:
    """One layer of a prompt: rotated q [h, g, n, d] and k [h, n, d], v [h, n, d], what it adds to the stream, and the weights."""

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    residual: np.ndarray
    added: np.ndarray
    w_o: np.ndarray

    def rows(self, last: int | None = None) -> np.ndarray:
        """Probabilities [h, g, w, n] of the last queries, all of them by default."""
        return attention_rows(self.q if last is None else self.q[:, :, self.q.shape[2] - last :], self.k)


def prompt_arrays(lm, ids) -> list[LayerArrays]:
    """What the model's layers compute for a prompt, attention in float64."""
    x, at, layers = lm.decoder.embed(lm.params, jnp.asarray([ids], jnp.int32)), jnp.arange(len(ids), dtype=jnp.int32)[None], []
    for weights in lm.params["layers"]:

        def attend(heads):
            q, k, v, w_o = (np.asarray(a) for a in (heads.q[0], heads.k[0], heads.v[0], heads.w_o))
            out = np.einsum("hgtn,hnd->hgtd", attention_rows(q, k), v.astype(np.float64))
            added = np.einsum("hgtd,ehgd->te", out, w_o.astype(np.float64))
            layers.append(LayerArrays(q, k, v, np.asarray(heads.residual)[0], added, w_o))
            return jnp.asarray(out[None], heads.q.dtype), None

        x, _ = lm.decoder.layer(weights, x, at, attend)
    return layers


def prefilled(layers, make: Callable, show: Callable = softmax) -> list[list]:
    """Rules make(layer, head) that have seen the prompt."""
    rules = [[make(i, h) for h in range(len(layer.k))] for i, layer in enumerate(layers)]
    for layer, of_layer in zip(layers, rules, strict=True):
        for h, rule in enumerate(of_layer):
            rule.prefill(show(causal_logits(layer.q[h], layer.k[h])))
    return rules


def decoded(lm, layers, rules, tokens, show: Callable = softmax) -> tuple[np.ndarray, list]:
    """(logits [t, v], what is held after each token, by layer and head) of known tokens under the rules."""
    n = layers[0].k.shape[1]
    cache, logits, held = [(x.k, x.v) for x in layers], [], []
    for t, token in enumerate(tokens):
        x, at = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[n + t]], jnp.int32)
        for layer, weights in enumerate(lm.params["layers"]):

            def attend(heads, layer=layer, t=t):
                k, v = (
                    np.concatenate([old, np.asarray(new)[0]], 1) for old, new in zip(cache[layer], (heads.k, heads.v), strict=True)
                )
                cache[layer], q = (k, v), np.asarray(heads.q)[0, :, :, 0].astype(np.float64)
                out = []
                for h, rule in enumerate(rules[layer]):
                    seen = np.append(rule.held, n + t)
                    z = q[h] @ k[h, seen].T.astype(np.float64) / np.sqrt(q.shape[-1])
                    out.append(softmax(z) @ v[h, seen].astype(np.float64))
                    rule.step(show(z), n + t)
                return jnp.asarray(np.stack(out)[None, :, :, None], heads.q.dtype), None

            x, _ = lm.decoder.layer(weights, x, at, attend)
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
        held.append([[np.array(rule.held) for rule in of_layer] for of_layer in rules])
    return np.stack(logits), held


def kvjax_decoded(lm, cache, tokens, policy, stops) -> tuple[np.ndarray, list]:
    """The same of kvjax, known tokens one at a time; what is held is told after each of the `stops`."""
    logits, held = [], []
    for first, end in zip((0, *stops[:-1]), stops, strict=True):
        room = 192 - (end - first)  # pools of one size: one program
        read = kvjax.extend(lm, cache, tokens[first:end], policy, return_logits=True, block=1, pool_budget=room)
        cache = read.cache
        logits.append(np.asarray(read.logits)[0])
        held.append(kept_by(cache))
    return np.concatenate(logits), held


def same_kept(got, want) -> None:
    """Every layer and head holds the same positions."""
    for layer, (one, other) in enumerate(zip(got, want, strict=True)):
        for h, (x, y) in enumerate(zip(one, other, strict=True)):
            np.testing.assert_array_equal(x, np.sort(y), err_msg=f"layer {layer}, head {h}")


STOPS = (1, 5, 16, 33, 64)


def decodes_as(lm, pre, policy, layers, rules, tokens, show: Callable = softmax, stops=STOPS) -> None:
    """kvjax holds after the prompt and while decoding what the rules hold, and gives their logits."""
    cache = kvjax.compress(pre, policy)
    same_kept(kept_by(cache), [[rule.held for rule in of_layer] for of_layer in rules])
    want, expected = decoded(lm, layers, rules, tokens[: stops[-1]], show)
    got, held = kvjax_decoded(lm, cache, tokens, policy, stops)
    for at, one in zip(stops, held, strict=True):
        same_kept(one, expected[at - 1])
    np.testing.assert_allclose(got, want, atol=1e-4, rtol=1e-4)


def kept_by(cache) -> list:
    """What a cache of one row holds, by layer and head."""
    return [cache.kept(layer)[0] for layer in range(cache.start.shape[0])]
