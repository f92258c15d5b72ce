"""Losses of gates that predict a number of each token: no second pass, only what another pass has measured."""

import jax.numpy as jnp
from jaxtyping import Array, Float, Float32


def smooth_l1(predicted: Float[Array, "*s"], wanted: Float[Array, "*s"]) -> Float32[Array, "*s"]:
    """δ²/2 where |δ| < 1, |δ| - 1/2 beyond, δ = predicted - wanted."""
    delta = jnp.abs(predicted.astype(jnp.float32) - wanted.astype(jnp.float32))
    return jnp.where(delta < 1, 0.5 * delta**2, delta - 0.5)


def squared_error(predicted: Float[Array, "*s"], wanted: Float[Array, "*s"]) -> Float32[Array, "*s"]:
    """(predicted - wanted)²."""
    return jnp.square(predicted.astype(jnp.float32) - wanted.astype(jnp.float32))


def neighbours(predicted: Float[Array, "*s t"]) -> Float32[Array, "*s t-1"]:
    """(x_{t+1} - x_t)²."""
    return jnp.square(jnp.diff(predicted.astype(jnp.float32)))


def smooth_l1_with_neighbours(
    predicted: Float[Array, "*s t"], wanted: Float[Array, "*s t"], weight: float = 0.0025
) -> Float32[Array, ""]:
    """mean smooth_l1 + weight · mean neighbours, of one layer.

    Source: Locret, arXiv 2410.01805, section 3.2, weight as released; of several layers the second terms are summed.
    """
    return smooth_l1(predicted, wanted).mean() + weight * neighbours(predicted).mean()


def score_kl(wanted: Float[Array, "*s n"], score: Float[Array, "*s n"], least: float = 1e-12) -> Float32[Array, "*s"]:
    """KL(w / Σ w ‖ s / Σ s) over the last axis.

    Args:
        wanted, score: at least 0; a token of no weight is left out.   least: a floor of both before their logarithms.

    Source: LookaheadKV, arXiv 2603.10899, section 3.
    """
    w, s = (x.astype(jnp.float32) / jnp.maximum(x.astype(jnp.float32).sum(-1, keepdims=True), least) for x in (wanted, score))
    return (w * (jnp.log(jnp.maximum(w, least)) - jnp.log(jnp.maximum(s, least)))).sum(-1)
