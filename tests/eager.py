"""Decoding written out: NumPy attention over dense keys and values in the model's own layers, one token after another."""

import jax.numpy as jnp
import numpy as np

from tests.reference.softmax import softmax


def dense(pre, kept) -> list[tuple[np.ndarray, np.ndarray]]:
    """Keys and values [h, n, d] of the prompt's positions `kept`, one array for each layer."""
    row = pre.rows[0]
    return [(np.asarray(k)[0][:, j], np.asarray(v)[0][:, j]) for k, v, j in zip(row.k, row.v, kept, strict=True)]


def attention(q, k, v, seen=None):
    """(out [h, g, d], rows [h, g, n]) of one query a head over the slots `seen`, float64."""
    z = np.einsum("hgd,hnd->hgn", q.astype(np.float64), k.astype(np.float64)) / np.sqrt(q.shape[-1])
    rows = softmax(z if seen is None else np.where(seen, z, -np.inf))
    return np.einsum("hgn,hnd->hgd", rows, v.astype(np.float64)), rows


def run_steps(lm, tokens, *, start, attend):
    """Logits [t, v] after each token; attend(layer, inputs) gives the attention's output [h, g, d] of the one token in `inputs`."""
    logits = []
    for t, token in enumerate(tokens):
        x, at = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), jnp.asarray([[start + t]], jnp.int32)
        for layer, weights in enumerate(lm.params["layers"]):

            def of_layer(inputs, layer=layer):
                return jnp.asarray(attend(layer, inputs)[None, :, :, None], inputs.q.dtype), None

            x, _ = lm.decoder.layer(weights, x, at, of_layer)
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
    return np.stack(logits)


def run_dense(lm, cache, tokens, *, start, change=lambda layer, out, v: out, watch=lambda layer, q, k, v: None):
    """(logits [t, v] after each token, what `watch` returned, by step and layer); `change` may alter a layer's output."""
    cache, watched = list(cache), []

    def attend(layer, inputs):
        old_k, old_v = cache[layer]
        k = np.concatenate([old_k, np.asarray(inputs.k)[0]], axis=1)
        v = np.concatenate([old_v, np.asarray(inputs.v)[0]], axis=1)
        cache[layer], q = (k, v), np.asarray(inputs.q)[0, :, :, 0]
        if layer == 0:
            watched.append([])
        watched[-1].append(watch(layer, q, k, v))
        return change(layer, attention(q, k, v)[0], v)

    return run_steps(lm, tokens, start=start, attend=attend), watched
