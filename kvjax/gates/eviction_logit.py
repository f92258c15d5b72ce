"""How sure a layer is that the token before this one can go (DMS)."""

import flax.linen as nn
import jax.numpy as jnp
from jax import lax
from jaxtyping import Array, Float, Float32

from kvjax.gates.gate import Gate


def eviction_logit(raw: Float[Array, "*a"], scale: float = 100.0, offset: float = 5.0) -> Float32[Array, "*a"]:
    """ℓ = scale · raw - offset; ℓ > 0: evict."""
    return scale * raw.astype(jnp.float32) - offset


class EvictionGate(Gate):
    """ℓ = scale · (norm(x) W + b) - offset, x the residual stream before the layer, norm an RMSNorm of the gate's own.

    W and b start at 0: a token is evicted with a chance of σ(-5) = 0.0067 before training.

    Args:
        heads: KV heads.   scale, offset: of the logit.   eps: of the norm.

    Source: DMS, arXiv 2506.05345, as released (its `separate_alpha`).
    """

    reads = ("residual",)

    heads: int
    scale: float = 100.0
    offset: float = 5.0
    eps: float = 1e-6

    @nn.compact
    def __call__(self, x: Float[Array, "b t e"]) -> Float32[Array, "b h t"]:
        zero, exact = nn.initializers.zeros, lax.Precision.HIGHEST
        x = nn.RMSNorm(epsilon=self.eps, name="norm")(x.astype(jnp.float32))
        raw = nn.Dense(self.heads, kernel_init=zero, bias_init=zero, precision=exact, name="alpha")(x)
        return jnp.swapaxes(eviction_logit(raw, self.scale, self.offset), 1, 2)
