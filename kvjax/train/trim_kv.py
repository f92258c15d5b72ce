"""What TRIM-KV adds to a forward pass while its gate is trained: decaying logits, and a price for what is still alive."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, read
from kvjax.train.forward import Attend, Hook
from kvjax.train.losses import positive_mean


def ages(t: int) -> Float32[Array, "t t"]:
    """t - i of every query and key; 0 where i is later."""
    i = jnp.arange(t, dtype=jnp.float32)
    return jnp.maximum(i[:, None] - i, 0.0)


def decay(log_beta: Float32[Array, "b h t"]) -> Float32[Array, "b h 1 t t"]:
    """bias_ti = (t - i) log β_i, the same for all query heads of a KV head.

    Source: TRIM-KV, arXiv 2512.03324, section 4.2; the additive form of the paper and of the fused code.
    """
    return (ages(log_beta.shape[-1]) * log_beta[:, :, None])[:, :, None]


def retained(log_beta: Float32[Array, "b h t"]) -> Float32[Array, "b h t"]:
    """S_t = Σ_{i<=t} β_i^(t-i): how many tokens are alive."""
    t = log_beta.shape[-1]
    alive = jnp.where(jnp.tril(jnp.ones((t, t), bool)), ages(t) * log_beta[:, :, None], -jnp.inf)
    return jnp.exp(alive).sum(-1)


def capacity(
    log_beta: Sequence[Float32[Array, "b h t"]], budget: int, valid: Bool[Array, "b t"] | None = None
) -> Float32[Array, ""]:
    """mean of (S_t - M) / max(t - M, 1) where it is above 0, t from 0, over the valid tokens of all rows, heads and layers.

    Args:
        log_beta: of every layer.   budget: M, slots of a head.   valid: tokens that are no padding; all, where not given.

    Source: TRIM-KV's released training code; its paper divides by t, from 1, and takes the mean over all t.
    """
    alive = jnp.stack([retained(layer) for layer in log_beta])
    t = jnp.arange(alive.shape[-1], dtype=jnp.float32)
    return positive_mean((alive - budget) / jnp.maximum(t - budget, 1.0), True if valid is None else valid[:, None])


def model_capacity(
    log_beta: Sequence[Float32[Array, "b h t"]], budget: int, valid: Bool[Array, "b t"] | None = None
) -> Float32[Array, ""]:
    """mean of (S_t - M L H) / max((t - M) L H, 1) where it is above 0, t from 0, S_t summed over all heads of all layers.

    Args:
        log_beta: of every layer.   budget: M, mean slots of a KV head.   valid: as in `capacity`.

    Source: Make Each Token Count, arXiv 2605.09649, section 4, as released.
    """
    heads = len(log_beta) * log_beta[0].shape[1]
    t = jnp.arange(log_beta[0].shape[-1], dtype=jnp.float32)
    alive = sum(retained(layer).sum(1) for layer in log_beta)
    return positive_mean((alive - budget * heads) / jnp.maximum((t - budget) * heads, 1.0), True if valid is None else valid)


def decaying(gate: Gate) -> Hook:
    """A hook whose attention decays as the gate says; it gives back log β [b h t] of the layer."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Array]:
        del layer
        log_beta = read(gate, weights, inputs)
        return attend(inputs, decay(log_beta)), log_beta

    return hook
