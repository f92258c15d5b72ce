"""What TRIM-KV adds to a forward pass while its gate is trained: decaying logits, and a price for what is still alive."""

from collections.abc import Sequence

import jax.numpy as jnp
from jaxtyping import Array, Bool, Float, Float32, PyTree

from kvjax.attention_inputs import AttentionInputs
from kvjax.gates.gate import Gate, read
from kvjax.train.forward import Attend, Hook
from kvjax.train.losses import masked_mean


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
    log_beta: Float32[Array, "b h t"], budget: int, valid: Bool[Array, "b t"] | None = None
) -> Float32[Array, ""]:
    """mean_t max(0, (S_t - M) / max(t - M, 1)), t from 0, over all rows and heads; over valid tokens where they are given.

    Source: TRIM-KV's released training code; its paper divides by t, from 1, and is otherwise the same.
    """
    t = jnp.arange(log_beta.shape[-1], dtype=jnp.float32)
    over = jnp.maximum((retained(log_beta) - budget) / jnp.maximum(t - budget, 1.0), 0.0)
    return over.mean() if valid is None else masked_mean(over, jnp.broadcast_to(valid[:, None], over.shape))


def model_capacity(
    log_beta: Sequence[Float32[Array, "b h t"]], budget: int, valid: Bool[Array, "b t"] | None = None
) -> Float32[Array, ""]:
    """mean_t max(0, (S_t - M L H) / max((t - M) L H, 1)), t from 1, S_t summed over all heads of all layers.

    Args:
        log_beta: of every layer.   budget: M, mean slots of a KV head.

    Source: Make Each Token Count, arXiv 2605.09649, section 4, as released.
    """
    heads = len(log_beta) * log_beta[0].shape[1]
    t = jnp.arange(1, log_beta[0].shape[-1] + 1, dtype=jnp.float32)
    alive = sum(retained(layer).sum(1) for layer in log_beta)
    over = jnp.maximum((alive - budget * heads) / jnp.maximum((t - budget) * heads, 1.0), 0.0)
    return over.mean() if valid is None else masked_mean(over, valid)


def decaying(gate: Gate) -> Hook:
    """A hook whose attention decays as the gate says; it gives back log β [b h t] of the layer."""

    def hook(layer: int, weights: PyTree, inputs: AttentionInputs, attend: Attend) -> tuple[Float[Array, "..."], Array]:
        del layer
        log_beta = read(gate, weights, inputs)
        return attend(inputs, decay(log_beta)), log_beta

    return hook
