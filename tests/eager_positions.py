"""Decoding with un-rotated keys, written out: NumPy rotates every key and query of every step anew."""

import jax.numpy as jnp
import numpy as np

import kvjax
from tests.eager import attention
from tests.reference.rotary import rotate


def raw_prompt(pre, row=0):
    """Un-rotated keys and values [h, n, d] of the prompt, and its positions by head, one triple for each layer."""
    r, n = pre.rows[row], pre.lengths[row]
    keys = [np.asarray(e.of(kvjax.evidence.RawKeys()))[0][:, :n] for e in r.evidence]
    values = [np.asarray(v)[0][:, :n] for v in r.v]
    return [(k, v, np.tile(np.arange(n), (k.shape[0], 1))) for k, v in zip(keys, values, strict=True)]


def keep(held, slots):
    """The same for the slots [h, m] of each head alone."""
    return [tuple(np.stack([x[h, j] for h, j in enumerate(slots)]) for x in layer) for layer in held]


def run(lm, held, tokens, *, start, places, cut=lambda layer, positions, rows: None):
    """Logits [t, v] after each token.

    `places(positions [h, n], now)` says where slots and the query stand: ([h, n], [h]); `cut(layer, positions, rows)` which slots
    [h, m] stay after a step whose attention was rows [h, g, n], None for all.
    """
    held, logits, omega = list(held), [], np.asarray(lm.decoder.rope.frequencies, np.float64)
    for t, token in enumerate(tokens):
        x, now = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32)), start + t
        for layer, weights in enumerate(lm.params["layers"]):

            def attend(inputs, layer=layer, now=now):
                fresh = np.asarray(inputs.k_raw)[0], np.asarray(inputs.v)[0]
                new = *fresh, np.full((fresh[0].shape[0], 1), now)
                k, v, pos = held[layer] = tuple(np.concatenate(x, 1) for x in zip(held[layer], new, strict=True))
                at, query_at = places(pos, now)
                q = rotate(np.asarray(inputs.q_raw)[0], query_at[:, None, None], omega)[:, :, 0]
                out, rows = attention(q, rotate(k, at, omega), v)
                stays = cut(layer, pos, rows)
                if stays is not None:
                    held[layer] = keep([held[layer]], stays)[0]
                return jnp.asarray(out[None, :, :, None], inputs.q.dtype), None

            x, _ = lm.decoder.layer(weights, x, jnp.asarray([[now]], jnp.int32), attend)
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
    return np.stack(logits)
