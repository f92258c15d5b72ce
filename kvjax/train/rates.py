"""What it costs to keep too much: terms of losses that pull a rate to a target."""

import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, Float32, PyTree


def rate_hinge(rate: Float[Array, "*s"], target: Float[Array, ""] | float) -> Float32[Array, ""]:
    """mean max(0, target - rate): a rate of evicted or merged tokens above its target is free.

    Args:
        rate: a row's mean decision over layers, heads and tokens.   target: 1 - 1/CR of a compression ratio CR.

    Source: DMC, arXiv 2403.09636, section 3.2; DMS, arXiv 2506.05345, section 3.
    """
    return jnp.maximum(target - rate.astype(jnp.float32), 0.0).mean()


def rate_deviation(rate: Float[Array, " l"], target: float) -> Float32[Array, ""]:
    """Σ_l |rate_l - target|, rate_l the mean probability that layer l keeps a token.

    Source: Attention-Gate, arXiv 2410.12876, section 3.3. Differs: the formula in print has no absolute value.
    """
    return jnp.abs(rate.astype(jnp.float32) - target).sum()


def l1(weights: PyTree) -> Float32[Array, ""]:
    """mean |w| over a gate's numbers, leaves joined."""
    flat = jnp.concatenate([x.astype(jnp.float32).ravel() for x in jax.tree.leaves(weights)])
    return jnp.abs(flat).mean()


def of_ratio(ratio: Float[Array, ""] | float) -> Float[Array, ""] | float:
    """1 - 1/CR: the share that has to go."""
    return 1 - 1 / ratio


def ratio_ramp(progress: Float[Array, ""] | float, last: float, first: float = 1.0) -> Float32[Array, ""]:
    """CR = first + (last - first) · progress, progress = step / steps held within 0 and 1.

    Source: DMC and DMS, as released.
    """
    return first + (last - first) * jnp.clip(jnp.float32(progress), 0.0, 1.0)
