"""Decoding with what each layer holds kept by a reference, one token after another, beside kvjax on the same tokens."""

from typing import Protocol

import jax.numpy as jnp
import numpy as np

import kvjax
from tests.conftest import ids_of


class Held(Protocol):
    """One layer of one sequence, in NumPy."""

    def step(self, q: np.ndarray, k: np.ndarray, v: np.ndarray, at: int) -> np.ndarray:
        """One token's queries [h, g, d], key and value [h, d]: what its attention gives [h, g, d]."""


def simulate(lm, held: list[Held], tokens: list[int], start: int) -> np.ndarray:
    """Logits [t, v] after each token."""
    logits = []
    for at, token in enumerate(tokens, start):
        x = lm.decoder.embed(lm.params, jnp.asarray([[token]], jnp.int32))
        for layer, weights in zip(held, lm.params["layers"], strict=True):

            def attend(heads, layer=layer, at=at):
                q, k, v = np.asarray(heads.q[0, :, :, 0]), np.asarray(heads.k[0, :, 0]), np.asarray(heads.v[0, :, 0])
                out = layer.step(q, k, v, at)
                return jnp.asarray(out[None, :, :, None], heads.q.dtype), None

            x, _ = lm.decoder.layer(weights, x, jnp.asarray([[at]], jnp.int32), attend)
        logits.append(np.asarray(lm.decoder.unembed(lm.params, x))[0, 0])
    return np.stack(logits)


def agree(lm, prompt: list[int], policy: kvjax.Policy, held: list[Held], steps: int = 64, atol: float = 2e-4):
    """The cache after `steps` tokens, having given the simulation's logits at each of them."""
    tokens = ids_of(steps, 11)
    cache = kvjax.compress(kvjax.prefill(lm, prompt, needs=policy), policy)
    fed = kvjax.extend(lm, cache, tokens, policy, block=1, return_logits=True)
    np.testing.assert_allclose(fed.logits[0], simulate(lm, held, tokens, len(prompt)), atol=atol)
    return fed.cache


def attend(q: np.ndarray, k: np.ndarray, v: np.ndarray) -> np.ndarray:
    """softmax(q k / sqrt(d)) v of one query [g, d] over slots [n, d]."""
    z = q.astype(np.float64) @ k.T / np.sqrt(q.shape[-1])
    p = np.exp(z - z.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True) @ v
