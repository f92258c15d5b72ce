"""Evictions that are decided at once and done later, while the decision is being learned (DMS)."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Bool, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, read
from kvjax.train.decisions import noisy_logit, straight_through
from kvjax.train.forward import Attend, Hook


def delayed_penalty(logit: Float32[Array, "b h t"], window: int) -> Float32[Array, "b h 1 t t"]:
    """bias_ij = ln(1 - σ(ℓ_(j+1))) where i - j > window, 0 elsewhere: token j + 1 decides whether token j goes.

    Source: DMS, arXiv 2506.05345, section 3, as released.
    """
    t = logit.shape[-1]
    judged = jnp.pad(logit[..., 1:], ((0, 0), (0, 0), (0, 1)))
    i = jnp.arange(t)
    old = i[:, None] - i > window
    return jnp.where(old, jax.nn.log_sigmoid(-judged)[:, :, None], 0.0)[:, :, None]


def deciding(gate: Gate, key: Array, *, temperature: float, window: int) -> Hook:
    """A hook whose attention fades as the gate decides; it gives back the noisy logits ℓ = (gate + G1 - G2) / τ [b h t]."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Array, Array]:
        logit = token_noise(jax.random.fold_in(key, layer), read(gate, weights, inputs), temperature)
        return attend(inputs, delayed_penalty(logit, window)), logit

    return hook


def token_noise(key: Array, logit: Float32[Array, "b h t"], temperature: float) -> Float32[Array, "b h t"]:
    """`noisy_logit`, drawn token by token: what pads a text on the right changes no draw before it."""
    return jnp.moveaxis(noisy_logit(key, jnp.moveaxis(logit, -1, 0), temperature), 0, -1)


def evicted_share(logits: Float32[Array, "b l h t"], valid: Bool[Array, "b t"]) -> Float32[Array, " b"]:
    """A row's mean decision over layers, heads and tokens: 0 or 1 going forward, the derivative of σ(ℓ) on the way back."""
    decided = jnp.where(valid[:, None, None], straight_through(jax.nn.sigmoid(logits)), 0.0).mean((1, 2)).sum(-1)
    return decided / jnp.maximum(valid.sum(-1), 1)
